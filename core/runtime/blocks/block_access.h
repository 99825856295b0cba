// What it takes to reach K and V in the blocks of one storage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "core/plugin/instance.h"
#include "core/runtime/blocks/element_type.h"
#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {

struct BlockAccess {
  Storage& storage;
  MemoryBridge& bridge;  // counts what the storage copies between host and device
  uint32_t block_size, n_kv_heads, head_dim, v_dim;
  // What lease.format counts in. In hybrid mode the formats of the context's storage come first,
  // then those of the window's; `storage` has [first_format, first_format + n_formats) of them.
  std::vector<kvasir_kv_format> formats;
  uint32_t first_format = 0;
  uint32_t n_formats = 0;

  const kvasir_kv_format& format_of(const kvasir_lease& lease) const {
    return formats[lease.format];
  }
  bool on_host(const kvasir_lease& lease) const {
    return is_host_memory(format_of(lease).mem_kind);
  }
  // The lease of a block of `storage`, with the format counted as the storage counts.
  kvasir_lease as_storage_counts(kvasir_lease lease) const {
    lease.format -= first_format;
    return lease;
  }
  // How many kv heads the block has.
  uint32_t heads_of(const kvasir_lease& lease) const {
    return lease.kv_head == KVASIR_ALL_HEADS ? n_kv_heads : 1;
  }
  // Bytes of K and of V of one token of one kv head.
  uint64_t k_bytes(const kvasir_kv_format& format) const {
    return kernels::row_bytes(element_type(format.dtype_k), head_dim);
  }
  uint64_t v_bytes(const kvasir_kv_format& format) const {
    return kernels::row_bytes(element_type(format.dtype_v), v_dim);
  }
};

}  // namespace kvasir
