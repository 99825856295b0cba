// Which kinds of memory the plugins of a pipeline work in, and whether they can work together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <span>

#include "core/plugin/pipeline.h"

namespace kvasir {

// After storage was bound, before the others are: every reader of K and V reads them where the
// storage holds them, and there is a device for whoever works in device memory only. unrotated: the
// keys are stored before RoPE, and the host turns them. Throws Error(kInput), which names both
// plugins and the remedy. In hybrid mode `window` is what the window's storage leases;
// where the context's blocks are in host memory, update() is given copies of blocks that its plugin
// cannot read.
void check_memory_kinds(const Pipeline& pipeline, std::span<const kvasir_kv_format> formats,
                        std::span<const kvasir_kv_format> window, bool unrotated);
// Whether a plugin reads K and V of this memory and these types.
bool can_read(const Instance& reader, const kvasir_kv_format& format);
// Hybrid mode attends keys as they are stored: no plugin may want them before RoPE.
void check_hybrid(const Pipeline& pipeline, bool unrotated);
// The same of where `owner` wants its records.
void check_record_memory(const Instance& owner, const RecordLayout& layout, const Storage& storage);

}  // namespace kvasir
