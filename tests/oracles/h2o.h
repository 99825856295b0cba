// H2O (arXiv:2306.14048): accumulated attention decides what stays; TOVA (arXiv:2401.06104): the
// attention of the last query does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::h2o {

// Accumulated probability of every token so far: the mean over some query heads.
class Accumulator {
 public:
  // One query at `position`, of each head of the group: probability[i] of token tokens[i].
  void add(uint32_t position, const Indices& tokens, const Vectors& probability) {
    sum_.resize(std::max<size_t>(sum_.size(), position + 1), 0.0);
    for (const Vector& head : probability)
      for (size_t i = 0; i < tokens.size(); ++i)
        sum_[tokens[i]] += head[i] / static_cast<double>(probability.size());
    n_queries_ = position + 1;
  }
  double of(uint32_t token) const { return sum_[token]; }
  // Per query that could see the token: without it the first tokens lead by age alone.
  double per_query(uint32_t token) const { return sum_[token] / (n_queries_ - token); }
  double total() const {
    double out = 0;
    for (const double x : sum_) out += x;
    return out;
  }
  uint32_t n_queries() const { return n_queries_; }
  void truncate(uint32_t n) {
    sum_.resize(n);
    n_queries_ = std::min(n_queries_, n);
  }

 private:
  Vector sum_;  // [token]
  uint32_t n_queries_ = 0;
};

// Of `alive`, ascending, the tokens older than the recent ones compete for `heavy` places by the
// largest of their sums.
inline Choice keep(const std::vector<Accumulator>& sums, const Indices& alive, uint32_t n_tokens,
                   uint32_t recent, uint64_t heavy, bool normalised) {
  Choice out;
  out.n = heavy;
  out.scale = Choice::kOfThreshold;
  for (const uint32_t t : alive) {
    if (t + recent >= n_tokens) continue;
    out.candidates.push_back(t);
    double most = 0;
    for (const Accumulator& of : sums)
      most = std::max(most, normalised ? of.per_query(t) : of.of(t));
    out.score.push_back(most);
  }
  return out;
}

// The published ratios: of the prompt's length, rounded down.
inline uint32_t ratio_budget(double ratio, uint32_t prompt_tokens) {
  return static_cast<uint32_t>(ratio * prompt_tokens);
}

}  // namespace kvasir::oracle::h2o

namespace kvasir::oracle::tova {

// One set for all heads: the mean over all query heads of the last query's probability.
// probability[q_head][i] of candidates[i].
inline Choice keep(const Indices& candidates, const Vectors& probability, uint64_t n) {
  return {candidates, reduce(probability, Reduce::kMean), n, Choice::kOfThreshold};
}

}  // namespace kvasir::oracle::tova
