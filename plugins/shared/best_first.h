// Places of scores from the best on.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvasir::sdk {

// Of equal scores the lower place goes first. No NaN.
template <class T>
std::vector<uint32_t> best_first(const std::vector<T>& score) {
  std::vector<uint32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
  return order;
}

}  // namespace kvasir::sdk
