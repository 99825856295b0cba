// Which kinds of memory the plugins of a pipeline work in, and whether they can work together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <span>

#include "core/plugin/pipeline.h"

namespace kvasir {

// Throws Error(kInput), which names both plugins and the remedy, unless every plugin that reads K
// and V reads the memory that the storage holds them in, and the storage gives device memory to
// plugins that work in nothing else. To be called when the storage is bound and the others are not.
// formats: those of the context's storage. window: in hybrid mode those of the window's storage.
// update() gets copies in host memory of blocks that its plugin cannot read. unrotated: keys are
// stored before RoPE, and the host rotates them.
void check_memory_kinds(const Pipeline& pipeline, std::span<const kvasir_kv_format> formats,
                        std::span<const kvasir_kv_format> window, bool unrotated);
// Whether it is given K or V: in select(), or in update(), for which it names its dtypes.
bool reads_keys(const Selector& selector);
// Whether update() of a plugin that reads K and V is given copies of blocks in formats of their
// own, since it cannot read blocks of one of these formats where they lie. Not where the context,
// whose formats come first, is in host memory: copies have its first format then.
bool reads_copies(const Instance& reader, std::span<const kvasir_kv_format> formats);
// Whether a plugin reads K and V in this kind of memory and of these element types.
bool can_read(const Instance& reader, const kvasir_kv_format& format);
// Throws Error(kInput) in hybrid mode with `unrotated`: it attends keys as they are stored.
void check_hybrid(const Pipeline& pipeline, bool unrotated);
// Throws Error(kInput) when `owner` wants its records in device memory and the storage gives none.
void check_record_memory(const Instance& owner, const RecordLayout& layout, const Storage& storage);

}  // namespace kvasir
