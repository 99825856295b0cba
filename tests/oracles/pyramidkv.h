// PyramidKV (arXiv:2406.02069): SnapKV with a budget that falls linearly with depth.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle::pyramidkv {

// Tokens kept before the window in each layer; n_tokens - window where nothing is dropped.
// capacity counts the window. beta: how steep.
inline std::vector<uint32_t> budgets(uint32_t n_layers, uint32_t capacity, uint32_t window,
                                     uint32_t n_tokens, uint32_t beta = 20) {
  const int64_t base = int64_t{capacity} - window, n = n_tokens, w = window;
  if (n < capacity)
    return std::vector<uint32_t>(n_layers, n > w ? static_cast<uint32_t>(n - w) : 0);
  if (n < 2 * base) return std::vector<uint32_t>(n_layers, static_cast<uint32_t>(base));
  int64_t low = base / beta, high = 2 * base - low;
  if (high >= n - w) {
    high = n - w;
    low = 2 * base - high;
  }
  const int64_t step = n_layers > 1 ? (high - low) / (n_layers - 1) : 0;
  std::vector<uint32_t> out;
  for (uint32_t layer = 0; layer < n_layers; ++layer)
    out.push_back(static_cast<uint32_t>(high - layer * step));
  return out;
}

}  // namespace kvasir::oracle::pyramidkv
