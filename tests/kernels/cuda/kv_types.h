// The element types of K and V that kernels of devices know.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"

namespace kvasir::test {

inline constexpr cuda::KvType kKvTypes[] = {cuda::KvType::kF32,  cuda::KvType::kF16,
                                            cuda::KvType::kBF16, cuda::KvType::kQ8_0,
                                            cuda::KvType::kQ4_0, cuda::KvType::kFp8};

inline bool is_grouped(cuda::KvType type) {
  return type == cuda::KvType::kQ8_0 || type == cuda::KvType::kQ4_0;
}

}  // namespace kvasir::test
