// SnapKV (arXiv:2404.14469): the last queries of the prompt vote for the tokens to keep.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::snapkv {

enum class Pooling { kNone, kMean, kMax };

// Stride 1, as long as the input; mean counts the zeros beyond the ends, max sees -inf there.
inline Vector pool(const Vector& x, uint32_t kernel, Pooling how) {
  if (how == Pooling::kNone) return x;
  const auto half = static_cast<long>(kernel / 2), n = static_cast<long>(x.size());
  Vector out;
  for (long at = 0; at < n; ++at) {
    double sum = 0, high = -kInfinity;
    for (long i = at - half; i < at - half + static_cast<long>(kernel); ++i) {
      if (i < 0 || i >= n) continue;
      sum += x[static_cast<size_t>(i)];
      high = std::max(high, x[static_cast<size_t>(i)]);
    }
    out.push_back(how == Pooling::kMax ? high : sum / kernel);
  }
  return out;
}

// Sum over the queries of the probability of each of the n tokens. q: one per query, at positions
// n - q.size() …; each sees what stands before it and itself, but for what is gone.
inline Vector vote(const Vectors& q, const Vectors& k, double scale, const Indices& gone = {}) {
  const auto n = static_cast<uint32_t>(k.size()), w = static_cast<uint32_t>(q.size());
  Vector sum(n, 0.0);
  for (uint32_t i = 0; i < w; ++i) {
    const Indices seen = without(range(0, n - w + i + 1), gone);
    const Vector p = softmax(logits(q[i], k, seen, scale));
    for (size_t s = 0; s < p.size(); ++s) sum[seen[s]] += p[s];
  }
  return sum;
}

struct Options {
  uint32_t window = 32;  // queries that vote, tokens at the end that are kept anyway
  uint32_t kernel = 5;
  Pooling pooling = Pooling::kMean;
  Reduce group = Reduce::kMean;
  bool pool_first = false;  // pooling per query head before the group's reduction (kvpress)
};

// What kv head `g` keeps of the candidates. votes[q_head][token], of the tokens before the window:
// neighbours count in the pooling whether they are candidates or kept anyway.
inline Choice choose(const Heads& heads, const Options& of, const Vectors& votes, uint32_t g,
                     const Indices& candidates, uint64_t n) {
  Vectors group(votes.begin() + g * heads.group(), votes.begin() + (g + 1) * heads.group());
  if (of.pool_first)
    for (Vector& vote : group) vote = pool(vote, of.kernel, of.pooling);
  Vector score = reduce(group, of.group);
  if (!of.pool_first) score = pool(score, of.kernel, of.pooling);
  Choice out{candidates, {}, n, Choice::kOfThreshold};
  for (const uint32_t t : candidates) out.score.push_back(score[t]);
  out.strict_ties = of.pooling != Pooling::kMean || of.kernel == 1;
  return out;
}

}  // namespace kvasir::oracle::snapkv
