// What every oracle is made of: attention over a set of tokens, its merge, the order of scores.
// Double precision and plain loops, written from the published definitions; shares no code with the
// runtime or the plugins. Slow on purpose.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace kvasir::oracle {

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;    // [token][head_dim], or one list per head
using Indices = std::vector<uint32_t>;  // tokens or blocks, ascending unless said otherwise

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Heads {
  uint32_t n_q_heads = 1, n_kv_heads = 1, head_dim = 1;
  uint32_t group() const { return n_q_heads / n_kv_heads; }
  uint32_t kv_head(uint32_t q_head) const { return q_head / group(); }
};

inline Indices range(uint32_t begin, uint32_t end) {
  Indices out(end > begin ? end - begin : 0);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// Eight sums side by side, so that no addition waits for the one before: most of the oracles' time
// goes here.
inline double dot(const Vector& a, const Vector& b) {
  using Pair = double __attribute__((vector_size(16), aligned(8), may_alias));
  constexpr size_t kPairs = 4;
  Pair sum[kPairs] = {};
  size_t d = 0;
  for (; d + 2 * kPairs <= a.size(); d += 2 * kPairs)
    for (size_t i = 0; i < kPairs; ++i)
      sum[i] += *reinterpret_cast<const Pair*>(a.data() + d + 2 * i) *
                *reinterpret_cast<const Pair*>(b.data() + d + 2 * i);
  double rest = 0;
  for (; d < a.size(); ++d) rest += a[d] * b[d];
  const Pair all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return all[0] + all[1] + rest;
}

// scale * q.k of the listed tokens, in their order.
inline Vector logits(const Vector& q, const Vectors& k, const Indices& tokens, double scale) {
  Vector out(tokens.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = scale * dot(q, k[tokens[i]]);
  return out;
}

// ln(sum of exp); -inf for the empty list and for one of nothing but -inf.
inline double log_sum_exp(const Vector& logit) {
  double high = -kInfinity, sum = 0;
  for (const double s : logit) high = std::max(high, s);
  if (high == -kInfinity) return -kInfinity;
  for (const double s : logit) sum += std::exp(s - high);
  return high + std::log(sum);
}

inline Vector softmax(const Vector& logit) {
  const double lse = log_sum_exp(logit);
  Vector out(logit.size(), 0.0);
  for (size_t i = 0; i < out.size(); ++i)
    if (logit[i] != -kInfinity) out[i] = std::exp(logit[i] - lse);
  return out;
}

// Attention over some tokens: the normalised output and the natural log of the sum. Nothing: (0,
// -inf).
struct Partial {
  Vector o;
  double lse = -kInfinity;
};

// v: one vector per logit.
inline Partial attend(const Vector& logit, const Vectors& v, size_t v_dim) {
  Partial out{Vector(v_dim, 0.0), log_sum_exp(logit)};
  for (size_t i = 0; i < logit.size(); ++i) {
    const double weight = logit[i] > -kInfinity ? std::exp(logit[i] - out.lse) : 0.0;
    for (size_t d = 0; d < v_dim && weight > 0; ++d) out.o[d] += weight * v[i][d];
  }
  return out;
}

// Of disjoint sets.
inline Partial merge(const Partial& a, const Partial& b) {
  const double high = std::max(a.lse, b.lse);
  if (high == -kInfinity) return a;
  Partial out{Vector(a.o.size(), 0.0),
              high + std::log(std::exp(a.lse - high) + std::exp(b.lse - high))};
  for (size_t d = 0; d < out.o.size(); ++d)
    out.o[d] = std::exp(a.lse - out.lse) * a.o[d] + std::exp(b.lse - out.lse) * b.o[d];
  return out;
}

// Whether score a ranks above score b: the higher one, NaN below everything. Equal ones do not.
inline bool above(double a, double b) {
  if (std::isnan(a)) return false;
  return std::isnan(b) || a > b;
}

// Positions of `score` in rank order: higher first, of equal ones the lower position first.
inline Indices ranked(const Vector& score) {
  Indices order = range(0, static_cast<uint32_t>(score.size()));
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return above(score[a], score[b]); });
  return order;
}

// The n best positions, ascending; all when there are fewer.
inline Indices top_k(const Vector& score, uint64_t n) {
  Indices order = ranked(score);
  order.resize(std::min<uint64_t>(n, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

// The smallest set, largest first, whose sum reaches p; everything when nothing smaller does.
inline Indices top_p(const Vector& mass, double p) {
  Indices out;
  double sum = 0;
  for (const uint32_t i : ranked(mass)) {
    if (sum >= p) break;
    out.push_back(i);
    sum += mass[i];
  }
  std::sort(out.begin(), out.end());
  return out;
}

inline Indices unite(const Indices& a, const Indices& b) {
  Indices out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}
inline Indices without(const Indices& a, const Indices& b) {
  Indices out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}
inline bool holds(const Indices& a, uint32_t x) {
  return std::binary_search(a.begin(), a.end(), x);
}

// candidates[i] for every position i in `positions`.
inline Indices pick(const Indices& candidates, const Indices& positions) {
  Indices out;
  for (const uint32_t i : positions) out.push_back(candidates[i]);
  return out;
}

// How the scores of several query heads become one.
enum class Reduce { kSum, kMean, kMax, kSoftmaxSum };

// score[head][item]; scale of kSoftmaxSum: softmax over the items of scale * score.
inline Vector reduce(const Vectors& score, Reduce rule, double scale = 1.0) {
  Vector out(score.empty() ? 0 : score[0].size(), rule == Reduce::kMax ? -kInfinity : 0.0);
  for (const Vector& head : score) {
    Vector scaled = head;
    for (double& s : scaled) s *= scale;
    const Vector probability = rule == Reduce::kSoftmaxSum ? softmax(scaled) : Vector();
    for (size_t i = 0; i < out.size(); ++i) {
      if (rule == Reduce::kMax)
        out[i] = std::max(out[i], head[i]);
      else
        out[i] += rule == Reduce::kSoftmaxSum ? probability[i] : head[i];
    }
  }
  if (rule == Reduce::kMean)
    for (double& s : out) s /= static_cast<double>(score.size());
  return out;
}

// RoPE by pairs of neighbours, x[2j] and x[2j + 1], or by halves, x[j] and x[j + n/2]: pair j turns
// by pos * base^(-2j/n).
enum class RopePairs { kNeighbours, kHalves };
inline Vector rotate(const Vector& x, double pos, double base, RopePairs pairs) {
  const size_t n = x.size();
  Vector y(n);
  for (size_t j = 0; j < n / 2; ++j) {
    const double angle =
        pos * std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(n));
    const size_t a = pairs == RopePairs::kNeighbours ? 2 * j : j;
    const size_t b = pairs == RopePairs::kNeighbours ? 2 * j + 1 : j + n / 2;
    const double along = std::cos(angle), across = std::sin(angle);
    y[a] = x[a] * along - x[b] * across;
    y[b] = x[a] * across + x[b] * along;
  }
  return y;
}

}  // namespace kvasir::oracle
