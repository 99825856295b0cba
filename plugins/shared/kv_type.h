// Element types of K and V as the kernels of devices name them. For plugins that link kvasir::cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "plugins/shared/element_type.h"

namespace kvasir::sdk {

static_assert(KVASIR_DTYPE_F32 == static_cast<uint32_t>(cuda::KvType::kF32) &&
              KVASIR_DTYPE_F16 == static_cast<uint32_t>(cuda::KvType::kF16) &&
              KVASIR_DTYPE_BF16 == static_cast<uint32_t>(cuda::KvType::kBF16) &&
              KVASIR_DTYPE_Q8_0 == static_cast<uint32_t>(cuda::KvType::kQ8_0) &&
              KVASIR_DTYPE_Q4_0 == static_cast<uint32_t>(cuda::KvType::kQ4_0) &&
              KVASIR_DTYPE_FP8_E4M3 == static_cast<uint32_t>(cuda::KvType::kFp8));

// Throws UNSUPPORTED for one that is not among kElementTypes.
inline cuda::KvType kv_type(uint32_t dtype) {
  return static_cast<cuda::KvType>(element_type(dtype));
}

}  // namespace kvasir::sdk
