// Summaries of a block of keys and their scores: mean, max, min/max (Quest, arXiv:2406.10774),
// fixed tokens, the most attended tokens. Unscaled, for one query head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle::representative {

enum class Combine { kSum, kMean, kMax };  // of the dot products of several vectors

inline double combined(const Vector& q, const Vectors& vectors, Combine how) {
  double sum = 0, high = -kInfinity;
  for (const Vector& r : vectors) {
    sum += dot(q, r);
    high = std::max(high, dot(q, r));
  }
  if (how == Combine::kMax) return high;
  return how == Combine::kMean ? sum / static_cast<double>(vectors.size()) : sum;
}

// k: the block's keys, as many as it holds.
inline Vector mean(const Vectors& k) {
  Vector out(k[0].size(), 0.0);
  for (const Vector& key : k)
    for (size_t d = 0; d < out.size(); ++d) out[d] += key[d] / static_cast<double>(k.size());
  return out;
}
inline Vector highest(const Vectors& k) {
  Vector out(k[0].size(), -kInfinity);
  for (const Vector& key : k)
    for (size_t d = 0; d < out.size(); ++d) out[d] = std::max(out[d], key[d]);
  return out;
}
inline Vector lowest(const Vectors& k) {
  Vector out(k[0].size(), kInfinity);
  for (const Vector& key : k)
    for (size_t d = 0; d < out.size(); ++d) out[d] = std::min(out[d], key[d]);
  return out;
}

// sum over d of max(q[d] * min[d], q[d] * max[d]): no key of the block has a larger product.
inline double bound(const Vector& q, const Vectors& k) {
  const Vector lo = lowest(k), hi = highest(k);
  double sum = 0;
  for (size_t d = 0; d < q.size(); ++d) sum += std::max(q[d] * lo[d], q[d] * hi[d]);
  return sum;
}

// sum over d of the largest q[d] * x[d] in the box whose sides are `scale` times as long about the
// same centre.
inline double shrunk_bound(const Vector& q, const Vectors& k, double scale) {
  const Vector lo = lowest(k), hi = highest(k);
  double sum = 0;
  for (size_t d = 0; d < q.size(); ++d) {
    const double centre = (lo[d] + hi[d]) / 2, side = scale * (hi[d] - lo[d]);
    sum += std::max(q[d] * (centre - side / 2), q[d] * (centre + side / 2));
  }
  return sum;
}

// The keys at 0, B/n, 2B/n … of a block of B tokens.
inline Vectors fixed(const Vectors& k, uint32_t n) {
  Vectors out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(k[i * k.size() / n]);
  return out;
}

// The n tokens with the largest importance (accumulated attention mass); of equals the lower one.
inline Vectors dynamic(const Vectors& k, const Vector& importance, uint32_t n) {
  Vectors out;
  for (const uint32_t t : top_k(importance, n)) out.push_back(k[t]);
  return out;
}

}  // namespace kvasir::oracle::representative
