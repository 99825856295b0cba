// The upper bound of every comparison: the tokens or blocks with the largest true attention mass,
// by number or as few as reach a share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::exact {

// Probability of every token for one query head, the forced ones included.
inline Vector mass(const Vector& q, const Vectors& k, const Indices& alive, double scale) {
  return softmax(logits(q, k, alive, scale));
}

// One kv head: sum over its query heads of the mass; candidates are among `alive`.
// mass[head of the group][i] of alive[i].
inline Choice best_tokens(const Indices& alive, const Vectors& mass, const Indices& candidates,
                          uint64_t n) {
  Choice out{candidates, {}, n, Choice::kOfThreshold};
  const Vector sum = reduce(mass, Reduce::kSum);
  for (const uint32_t t : candidates) {
    const auto at = std::lower_bound(alive.begin(), alive.end(), t) - alive.begin();
    out.score.push_back(sum[static_cast<size_t>(at)]);
  }
  return out;
}
inline Choice best_blocks(const Indices& alive, const Vectors& mass, const Indices& candidates,
                          uint32_t block_size, uint64_t n) {
  Choice out{candidates, Vector(candidates.size(), 0.0), n, Choice::kOfThreshold};
  const Vector sum = reduce(mass, Reduce::kSum);
  for (size_t c = 0; c < candidates.size(); ++c)
    for (size_t i = 0; i < alive.size(); ++i)
      if (alive[i] / block_size == candidates[c]) out.score[c] += sum[i];
  return out;
}

// A choice of the smallest set whose mass reaches p: the count is part of the answer.
// `lower` and `upper` are the counts for p -/+ slack, between which rounding may end.
struct TopP {
  Choice choice;
  uint64_t lower = 0, upper = 0;
};
inline TopP smallest_set(const Indices& candidates, const Vector& mass, double p, double slack) {
  TopP out;
  out.choice = {candidates, mass, top_p(mass, p).size(), Choice::kOfThreshold};
  out.lower = top_p(mass, p - slack).size();
  out.upper = top_p(mass, p + slack).size();
  return out;
}

}  // namespace kvasir::oracle::exact
