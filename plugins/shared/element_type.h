// Element types of K and V that the kernels read. For plugins that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/types.h>

#include <cstdint>
#include <string>

#include "kernels/element_type.h"

namespace kvasir::sdk {

static_assert(KVASIR_DTYPE_F32 == static_cast<uint32_t>(kernels::ElementType::kF32) &&
              KVASIR_DTYPE_F16 == static_cast<uint32_t>(kernels::ElementType::kF16) &&
              KVASIR_DTYPE_BF16 == static_cast<uint32_t>(kernels::ElementType::kBF16) &&
              KVASIR_DTYPE_Q8_0 == static_cast<uint32_t>(kernels::ElementType::kQ8_0) &&
              KVASIR_DTYPE_Q4_0 == static_cast<uint32_t>(kernels::ElementType::kQ4_0) &&
              KVASIR_DTYPE_FP8_E4M3 == static_cast<uint32_t>(kernels::ElementType::kFp8E4M3));

// For kvasir_desc.dtypes of a plugin that reads K or V through the kernels.
inline constexpr uint64_t kElementTypes =
    KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
    KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_Q8_0) |
    KVASIR_DTYPE_BIT(KVASIR_DTYPE_Q4_0) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_FP8_E4M3);

inline kernels::ElementType element_type(uint32_t dtype) {
  if (dtype >= 64 || !(kElementTypes & KVASIR_DTYPE_BIT(dtype))) {
    throw Error(KVASIR_ERR_UNSUPPORTED,
                "K or V of element type " + std::to_string(dtype) +
                    " cannot be read: set [storage] type_k and type_v to f32, f16, bf16, q8_0, "
                    "q4_0 or fp8_e4m3");
  }
  return static_cast<kernels::ElementType>(dtype);
}

}  // namespace kvasir::sdk
