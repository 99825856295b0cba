// The k best of n scores on the device, in the total order of kernels/topk.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

struct TopKList {
  uint64_t score;  // f32 [n]
  uint64_t index;  // u32 [min(k, n)], written
  uint32_t n, k;
  uint32_t higher_first;  // 1: of equal scores the higher index goes first
  uint32_t first;         // added to each index
};

// Indices of the min(k, n) best scores of each list, ascending. Higher score first, then lower
// index (or higher_first); +0 equals -0; NaN ranks below everything, -inf included.
//   lists  TopKList [n_lists], device memory
//
// Radix selection: of the float's bits made monotonic, 11, 11 and 10 bits at a time, the key of the
// k-th best and how many there are of it; then one walk in the order of indices. Launch: one block
// of 256 threads per list, which reads its scores four times, from the cache but for the first. No
// scratch. Queued in the stream.
void top_k(uint64_t lists, uint32_t n_lists, Stream stream);

}  // namespace kvasir::cuda
