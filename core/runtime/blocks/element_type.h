// Element types of the ABI as the kernels name them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/types.h>

#include <string>

#include "core/error.h"
#include "kernels/element_type.h"

namespace kvasir {

static_assert(KVASIR_DTYPE_F32 == static_cast<uint32_t>(kernels::ElementType::kF32) &&
              KVASIR_DTYPE_F16 == static_cast<uint32_t>(kernels::ElementType::kF16) &&
              KVASIR_DTYPE_BF16 == static_cast<uint32_t>(kernels::ElementType::kBF16) &&
              KVASIR_DTYPE_Q8_0 == static_cast<uint32_t>(kernels::ElementType::kQ8_0) &&
              KVASIR_DTYPE_Q4_0 == static_cast<uint32_t>(kernels::ElementType::kQ4_0) &&
              KVASIR_DTYPE_FP8_E4M3 == static_cast<uint32_t>(kernels::ElementType::kFp8E4M3));

inline bool has_element_type(uint32_t dtype) {
  return dtype >= KVASIR_DTYPE_F32 && dtype <= KVASIR_DTYPE_FP8_E4M3;
}

inline kernels::ElementType element_type(uint32_t dtype) {
  if (!has_element_type(dtype))
    throw Error(ErrorKind::kInternal, "blocks of element type " + std::to_string(dtype) +
                                          " reached what writes and reads f32, f16, bf16, "
                                          "q8_0, q4_0 and fp8_e4m3 only");
  return static_cast<kernels::ElementType>(dtype);
}

}  // namespace kvasir
