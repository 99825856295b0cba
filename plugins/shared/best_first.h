// Places of scores from the best on.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvasir::sdk {

// The first min(n, score.size()) of them. Of equal scores the lower place goes first. No NaN.
template <class T>
std::vector<uint32_t> best_first(const std::vector<T>& score, size_t n) {
  const auto goes_before = [&](uint32_t a, uint32_t b) {
    return score[a] != score[b] ? score[a] > score[b] : a < b;
  };
  std::vector<uint32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0u);
  if (n < order.size()) {
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(n), order.end(),
                     goes_before);
    order.resize(n);
  }
  std::sort(order.begin(), order.end(), goes_before);
  return order;
}

}  // namespace kvasir::sdk
