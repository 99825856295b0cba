// Top-k by partition of 64-bit keys that carry score and index.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/topk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace kvasir::kernels {
namespace {

// Orders like (score, then lower index): the float's bits made monotonic above the inverted index.
uint64_t key_of(float score, size_t index) {
  uint32_t order = 0;  // NaN: below -inf, whose pattern is 0x007fffff
  if (!std::isnan(score)) {
    const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
    order = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  }
  return (static_cast<uint64_t>(order) << 32) | (UINT32_MAX - static_cast<uint32_t>(index));
}

// Where fewer than one of so many are taken, sorting them takes less time than a walk over all.
constexpr size_t kFewOf = 16;

}  // namespace

size_t top_k_scratch_bytes(size_t n) { return n * sizeof(uint64_t); }

size_t top_k(const float* score, size_t n, size_t k, uint32_t* index, void* scratch) {
  auto* keys = static_cast<uint64_t*>(scratch);
  const size_t count = std::min(k, n);
  if (count == 0) return 0;
  for (size_t i = 0; i < n; ++i) keys[i] = key_of(score[i], i);
  if (count < n) std::nth_element(keys, keys + count - 1, keys + n, std::greater<>());
  if (count < n / kFewOf) {
    for (size_t i = 0; i < count; ++i) index[i] = UINT32_MAX - static_cast<uint32_t>(keys[i]);
    std::sort(index, index + count);
    return count;
  }
  const uint64_t least = *std::min_element(keys, keys + count);  // no two keys are equal
  for (size_t i = 0, at = 0; at < count; ++i) {
    if (key_of(score[i], i) >= least) index[at++] = static_cast<uint32_t>(i);
  }
  return count;
}

}  // namespace kvasir::kernels
