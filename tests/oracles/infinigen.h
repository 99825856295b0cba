// InfiniGen (arXiv:2406.19707): the attention of a layer is rehearsed one layer ahead with a few
// columns of skewed queries and keys; tokens near the largest rehearsed logit are fetched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/choice.h"

namespace kvasir::oracle::infinigen {

// x A for a row vector x. A by its columns; an empty one is the identity.
inline Vector skewed(const Vector& x, const Vectors& a) {
  if (a.empty()) return x;
  Vector out;
  for (const Vector& column : a) out.push_back(dot(x, column));
  return out;
}

// Sum of |x A| per column over some vectors x.
inline Vector magnitude(const Vectors& x, const Vectors& a) {
  Vector sum;
  for (const Vector& one : x) {
    const Vector y = skewed(one, a);
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
inline Choice columns(const Vectors& q, const Vectors& a, uint64_t n) {
  return largest(magnitude(q, a), n);
}
inline uint64_t column_count(double ratio, uint32_t head_dim) {
  return static_cast<uint64_t>(ratio * head_dim);
}
// By the sums of |q A|, of both |q A| and |k A|, or the best n by each.
enum class ColumnScore { kQuery, kQueryAndKey, kUnion };
inline Indices columns_by(ColumnScore rule, const Vector& q_sum, const Vector& k_sum, uint64_t n) {
  if (rule == ColumnScore::kQueryAndKey)
    return largest(reduce({q_sum, k_sum}, Reduce::kSum), n).chosen();
  const Indices by_query = largest(q_sum, n).chosen();
  return rule == ColumnScore::kQuery ? by_query : unite(by_query, largest(k_sum, n).chosen());
}

// Some columns of x A; 8 bits: in steps of a 127th of the largest.
inline Vector part(const Vector& x, const Vectors& a, const Indices& columns, bool is_8_bits) {
  Vector out;
  for (const uint32_t c : columns) out.push_back(a.empty() ? x[c] : dot(x, a[c]));
  double largest = 0;
  for (const double value : out) largest = std::max(largest, std::abs(value));
  const double step = largest / 127.0;
  for (double& value : out)
    if (is_8_bits && step > 0) value = std::round(value / step) * step;
  return out;
}
inline double partial_logit(const Vector& q, const Vector& k, const Vectors& a,
                            const Indices& columns, double scale, bool is_8_bits = false) {
  return scale * dot(part(q, a, columns, is_8_bits), part(k, a, columns, is_8_bits));
}

// What the columns leave of q: its product with any k is that of these columns of q A and k A.
inline Vector projected(const Vector& q, const Vectors& a, const Indices& columns) {
  Vector out(q.size(), 0.0);
  for (const uint32_t c : columns) {
    if (a.empty()) {
      out[c] = q[c];
      continue;
    }
    const double along = dot(q, a[c]);
    for (size_t d = 0; d < out.size(); ++d) out[d] += along * a[c][d];
  }
  return out;
}

struct Rehearsal {
  Vectors logit;  // [kv_head][candidate]: those of its query heads made one first
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
