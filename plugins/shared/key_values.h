// Keys as numbers. For plugins that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/leased_keys.h>

#include <cstdint>

#include "kernels/convert.h"
#include "plugins/shared/element_type.h"

namespace kvasir::sdk {

// For validate() of a plugin that scores keys as attention sees them.
inline void require_rotated_keys(const kvasir_geometry& geometry) {
  for (const kvasir_kv_format& format : formats_of(geometry)) element_type(format.dtype_k);
  if (geometry.k_state != KVASIR_K_UNROTATED) return;
  fail_invalid(
      "it needs keys with their rotation: cache.positions = \"true\", and no plugin in the "
      "strategy that wants keys stored before RoPE");
}

// Keys of tokens [first, first + n) as f32.   out [n][head_dim]
inline void read_keys(const HeadKeys& keys, uint32_t first, uint32_t n, uint32_t head_dim,
                      float* out) {
  const kernels::ElementType type = element_type(keys.dtype);
  for (uint32_t i = 0; i < n; ++i) {
    kernels::convert_to_f32(type, keys.k + (first + i) * keys.token_stride,
                            out + uint64_t{i} * head_dim, head_dim);
  }
}

// Of one key.
inline uint64_t key_bytes(const HeadKeys& keys, uint32_t head_dim) {
  return kernels::row_bytes(element_type(keys.dtype), head_dim);
}

}  // namespace kvasir::sdk
