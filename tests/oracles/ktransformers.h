// KTransformers' preselection: the last queries of the prompt vote for the blocks that stay
// reachable until the next prompt (article and operator, sections 2.5 and 2.7 of our reference).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::ktransformers {

// Mean importance of a block and of `margin` tokens on either side, a quarter block as published.
// importance[token], summed over queries and heads; zeros beyond `blocks`, which start at `first`.
inline Vector pooled(const Vector& importance, uint32_t block_size, uint32_t first, uint32_t blocks,
                     uint32_t margin) {
  const int64_t around = margin, size = block_size;
  Vector out;
  for (uint32_t b = first; b < first + blocks; ++b) {
    double sum = 0;
    for (int64_t t = b * size - around; t < (b + 1) * size + around; ++t) {
      const bool inside = t >= first * size && t < (first + blocks) * size &&
                          t < static_cast<int64_t>(importance.size());
      if (inside) sum += importance[static_cast<size_t>(t)];
    }
    out.push_back(sum / static_cast<double>(size + 2 * around));
  }
  return out;
}
inline Vector pooled(const Vector& importance, uint32_t block_size, uint32_t first,
                     uint32_t blocks) {
  return pooled(importance, block_size, first, blocks, block_size / 4);
}

// One layer's table: the best blocks, best first.
inline Indices table(const Choice& choice) {
  Indices order = ranked(choice.score);
  order.resize(std::min<uint64_t>(choice.n, order.size()));
  return pick(choice.candidates, order);
}

// Ranks 1 … min(k, 6) - 1 of the last layer replace the weakest entries of the others, from the
// last backwards, where they are not in already.
inline void share_last_layer(std::vector<Indices>& tables) {
  const Indices last = tables.back();
  for (size_t layer = 0; layer + 1 < tables.size(); ++layer) {
    Indices& of = tables[layer];
    for (size_t i = 1; i < std::min<size_t>(last.size(), 6) && i < of.size(); ++i)
      if (std::find(of.begin(), of.end(), last[i]) == of.end()) of[of.size() - i] = last[i];
  }
}

}  // namespace kvasir::oracle::ktransformers
