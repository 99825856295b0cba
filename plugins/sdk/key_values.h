// Keys as numbers: which element types can be read, and reading them. For plugins that link
// kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <cstdint>
#include <string>

#include "kernels/convert.h"
#include "plugins/sdk/leased_keys.h"

namespace kvasir::sdk {

// Types of keys that can be read.
inline constexpr uint64_t kKeyTypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) |
                                      KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
                                      KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16);

inline kernels::ElementType key_type(uint32_t dtype) {
  switch (dtype) {
    case KVASIR_DTYPE_F32:
      return kernels::ElementType::kF32;
    case KVASIR_DTYPE_F16:
      return kernels::ElementType::kF16;
    case KVASIR_DTYPE_BF16:
      return kernels::ElementType::kBF16;
    default:
      throw Error(KVASIR_ERR_UNSUPPORTED, "keys of element type " + std::to_string(dtype) +
                                              " cannot be read: use f32, f16 or bf16");
  }
}

// For validate() of a plugin that scores keys as attention sees them.
inline void require_rotated_keys(const kvasir_geometry& geometry) {
  for (const kvasir_kv_format& format : formats_of(geometry)) key_type(format.dtype_k);
  if (geometry.k_state != KVASIR_K_UNROTATED) return;
  fail_invalid(
      "it needs keys with their rotation: cache.positions = \"true\", and no plugin in the "
      "strategy that wants keys stored before RoPE");
}

// Rows [first, first + n) as f32.   out [n][head_dim]
inline void read_keys(const BlockRows& keys, uint32_t first, uint32_t n, uint32_t head_dim,
                      float* out) {
  const kernels::ElementType type = key_type(keys.dtype);
  for (uint32_t i = 0; i < n; ++i) {
    kernels::convert_to_f32(type, keys.k + (first + i) * keys.token_stride,
                            out + uint64_t{i} * head_dim, head_dim);
  }
}

}  // namespace kvasir::sdk
