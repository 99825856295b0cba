// InfiniGen (arXiv:2406.19707): the attention of a layer is rehearsed one layer ahead with a few
// columns of skewed queries and keys; tokens near the largest rehearsed logit are fetched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::infinigen {

// x A for a row vector x; an empty A is the identity.
inline Vector skewed(const Vector& x, const Rows& a) {
  if (a.empty()) return x;
  Vector out(a[0].size(), 0.0);
  for (size_t row = 0; row < x.size(); ++row)
    for (size_t column = 0; column < out.size(); ++column) out[column] += x[row] * a[row][column];
  return out;
}

// Sum of |x A| per column over some rows.
inline Vector magnitude(const Rows& x, const Rows& a) {
  Vector sum;
  for (const Vector& row : x) {
    const Vector y = skewed(row, a);
    sum.resize(y.size(), 0.0);
    for (size_t c = 0; c < y.size(); ++c) sum[c] += std::abs(y[c]);
  }
  return sum;
}
// The n columns of one kv head with the largest sum over queries and heads of its group of |q A|.
// q: of all heads of the group, one after the other.
inline Choice largest(const Vector& sum, uint64_t n) {
  return {range(0, static_cast<uint32_t>(sum.size())), sum, n, 0};
}
inline Choice columns(const Rows& q, const Rows& a, uint64_t n) {
  return largest(magnitude(q, a), n);
}
inline uint64_t column_count(double ratio, uint32_t head_dim) {
  return static_cast<uint64_t>(ratio * head_dim);
}

inline double partial_logit(const Vector& q, const Vector& k, const Rows& a, const Indices& columns,
                            double scale) {
  const Vector x = skewed(q, a), y = skewed(k, a);
  double sum = 0;
  for (const uint32_t c : columns) sum += x[c] * y[c];
  return scale * sum;
}

struct Rehearsal {
  Rows logit;  // [kv_head][candidate]: those of its query heads made one first
  double alpha = 4;
  uint64_t cap = 0;  // 0: none
};

// One common count: the mean over all kv heads of how many logits lie within alpha of the head's
// largest, rounded down, at least one, at most the cap and the candidates.
inline uint64_t common_count(const Rehearsal& of) {
  uint64_t sum = 0, n = of.logit.empty() ? 0 : of.logit[0].size();
  if (n == 0) return 0;
  for (const Vector& head : of.logit) {
    const double high = *std::max_element(head.begin(), head.end());
    for (const double s : head) sum += s > high - of.alpha ? 1 : 0;
  }
  uint64_t count = std::max<uint64_t>(1, sum / of.logit.size());
  if (of.cap > 0) count = std::min(count, of.cap);
  return std::min(count, n);
}

// How the common count may come out when logits within `slack` of a head's threshold fall on either
// side of it: [lowest, highest].
inline std::pair<uint64_t, uint64_t> count_bounds(Rehearsal of, double slack) {
  const double alpha = of.alpha;
  of.alpha = alpha - slack;
  const uint64_t low = common_count(of);
  of.alpha = alpha + slack;
  return {low, common_count(of)};
}

// What one kv head takes: its own best `count`.
inline Choice choose(const Rehearsal& of, const Indices& candidates, uint32_t kv_head,
                     uint64_t count) {
  return {candidates, of.logit[kv_head], count, 0};
}

}  // namespace kvasir::oracle::infinigen
