// The k best of n scores, in one total order everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

// Scratch for top_k: one 64-bit word per score.
size_t top_k_scratch_bytes(size_t n);

// Indices of the min(k, n) best scores, ascending, into index; returns how many. Higher score
// first, then lower index; +0 equals -0; NaN ranks below everything. O(n) on average.
//   score [n] f32, index [min(k, n)] written, scratch [n] uint64_t
size_t top_k(const float* score, size_t n, size_t k, uint32_t* index, void* scratch);

// Indices of the scores of at least `low`, ascending, into index; returns how many. NaN is not.
//   score [n] f32, index [n]: overwritten
size_t list_from(const float* score, size_t n, float low, uint32_t* index);

}  // namespace kvasir::kernels
