// The k best of n scores, the same ones on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace kvasir::block_topk {

// Order: higher score first, equal scores by lower index, NaN below -inf. Both go into one integer
// that sorts alike: the score's bits above, the complement of the index below.
inline uint64_t sort_key(float score, uint32_t index) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 and 0 are equal
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{std::isnan(score) ? 0 : ordered} << 32 | uint32_t{~index};
}

// best [k], k <= scores.size(): indices into scores, written ascending. keys: scratch like scores.
inline void top_k(std::span<const float> scores, std::span<uint64_t> keys,
                  std::span<uint32_t> best) {
  const size_t k = best.size();
  if (k == 0) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    keys[i] = sort_key(scores[i], static_cast<uint32_t>(i));
  }
  std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(k - 1), keys.end(),
                   std::greater<>());
  for (size_t i = 0; i < k; ++i) best[i] = ~static_cast<uint32_t>(keys[i]);
  std::sort(best.begin(), best.end());
}

}  // namespace kvasir::block_topk
