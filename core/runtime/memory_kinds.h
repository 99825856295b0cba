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
// plugins and the remedy.
void check_memory_kinds(const Pipeline& pipeline, std::span<const kvasir_kv_format> formats,
                        bool unrotated);
// The same of where `owner` wants its records.
void check_record_memory(const Instance& owner, const RecordLayout& layout, const Storage& storage);

}  // namespace kvasir
