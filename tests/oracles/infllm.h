// InfLLM (arXiv:2402.04617): blocks that leave the local window are represented by their tokens
// most attended from within it, and looked up with queries and keys whose distance is held
// constant.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "tests/oracles/choice.h"

namespace kvasir::oracle::infllm {

// Accumulated probability per token from queries in whose window it was; one query head.
class LocalMass {
 public:
  void add(const Indices& tokens, const Vector& probability) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= sum_.size()) sum_.resize(tokens[i] + 1, 0.0);
      sum_[tokens[i]] += probability[i];
    }
  }
  double of(uint32_t token) const { return token < sum_.size() ? sum_[token] : 0.0; }
  void forget(uint32_t from) { sum_.resize(std::min<size_t>(sum_.size(), from)); }

 private:
  Vector sum_;
};

// The tokens that stand for a block: the n with the largest mass.
inline Choice representatives(const LocalMass& mass, uint32_t block, uint32_t block_size,
                              uint64_t n) {
  Choice out;
  out.n = n;
  out.scale = Choice::kOfThreshold;
  out.candidates = range(block * block_size, (block + 1) * block_size);
  for (const uint32_t t : out.candidates) out.score.push_back(mass.of(t));
  return out;
}
// Their keys, not rotated, averaged.
inline Vector block_key(const Vectors& k, const Indices& tokens) {
  Vector out(k[0].size(), 0.0);
  for (const uint32_t t : tokens)
    for (size_t d = 0; d < out.size(); ++d) out[d] += k[t][d] / static_cast<double>(tokens.size());
  return out;
}

// What a block is looked up by, for one query head. Where single precision may take another token
// in place of the last one, `other` is the key with that one.
struct BlockKey {
  Vector key, other;
};
// mass: all zero when nobody in the window looked; then the mean of the block.
inline BlockKey block_key(const LocalMass& mass, const Vectors& k, uint32_t block,
                          uint32_t block_size, uint64_t n) {
  constexpr double kNear = 1e-5;  // relative, of sums in single precision
  Choice choice = representatives(mass, block, block_size, n);
  const Indices order = ranked(choice.score);
  if (choice.score[order[0]] == 0) choice.n = block_size;
  const Vector key = block_key(k, choice.chosen());
  if (choice.n >= block_size) return {key, key};
  const double last = choice.score[order[choice.n - 1]], next = choice.score[order[choice.n]];
  if (last - next > kNear * last) return {key, key};
  Indices swapped = order;
  std::swap(swapped[choice.n - 1], swapped[choice.n]);
  swapped.resize(choice.n);
  return {key, block_key(k, pick(choice.candidates, swapped))};
}

// One set for all heads: the sum over query heads of q.key. key[q_head][candidate]; q: mean of the
// slice's queries, turned to the constant position.
inline Choice retrieve(const Indices& blocks, const Vectors& q, const std::vector<Vectors>& key,
                       uint64_t n) {
  Choice out{blocks, Vector(blocks.size(), 0.0), n, 0};
  for (size_t i = 0; i < blocks.size(); ++i) {
    double terms = 0;
    for (size_t h = 0; h < q.size(); ++h) {
      out.score[i] += dot(q[h], key[h][i]);
      terms += std::abs(dot(q[h], key[h][i]));
    }
    out.scale = std::max(out.scale, terms);
  }
  return out;
}

// What a query at `position` sees and how: near tokens at their true distance, far ones all at the
// same.
inline bool is_near(uint32_t position, uint32_t token, uint32_t n_local) {
  return position - token < n_local;
}

}  // namespace kvasir::oracle::infllm
