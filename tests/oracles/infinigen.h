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

// The first n columns of A = V, where the rows q are Q = U S V^T: by rotations of two columns of Q
// that make them orthogonal (Hestenes 1958). Empty where the rows span fewer than n dimensions,
// which leaves the others open: squares of singular values below 1e-12 of the largest are rounding.
inline Vectors first_singular_vectors(const Vectors& q, uint64_t n) {
  if (q.empty()) return {};
  const size_t dim = q[0].size();
  Vectors us, v(dim, Vector(dim, 0.0));  // by their columns: U S = Q V, and V
  for (size_t c = 0; c < dim; ++c) {
    v[c][c] = 1.0;
    us.emplace_back();
    for (const Vector& row : q) us[c].push_back(row[c]);
  }
  const auto turn = [](Vector& a, Vector& b, double cosine, double sine) {
    for (size_t i = 0; i < a.size(); ++i) {
      const double x = a[i], y = b[i];
      a[i] = cosine * x - sine * y;
      b[i] = sine * x + cosine * y;
    }
  };
  double all = 0.0;
  for (const Vector& row : q) all += dot(row, row);
  for (bool turned = true; turned;) {
    turned = false;
    for (size_t a = 0; a < dim; ++a)
      for (size_t b = a + 1; b < dim; ++b) {
        const double aa = dot(us[a], us[a]), bb = dot(us[b], us[b]), ab = dot(us[a], us[b]);
        const bool is_rounding = std::min(aa, bb) <= 1e-24 * all;
        if (is_rounding || std::abs(ab) <= 1e-13 * std::sqrt(aa * bb)) continue;
        const double angle = 0.5 * std::atan2(2 * ab, bb - aa);
        turn(us[a], us[b], std::cos(angle), std::sin(angle));
        turn(v[a], v[b], std::cos(angle), std::sin(angle));
        turned = true;
      }
  }
  std::vector<std::pair<double, size_t>> order;
  for (size_t c = 0; c < dim; ++c) order.emplace_back(-dot(us[c], us[c]), c);
  std::sort(order.begin(), order.end());
  if (!(order[n - 1].first < 1e-12 * order[0].first)) return {};
  Vectors out;
  for (uint64_t c = 0; c < n; ++c) out.push_back(v[order[c].second]);
  return out;
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
