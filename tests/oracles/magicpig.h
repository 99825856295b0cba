// MagicPIG (arXiv:2410.16179): keys are sampled by hash collisions with known probability, and
// their logits corrected by its logarithm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle::magicpig {

struct Hash {
  uint32_t bits = 10, tables = 150;  // K and L
  Vectors planes;                    // [table * bits + bit][head_dim]
};

// The i-th set of n planes that a seed stands for, by the plugin's README: Gaussian numbers in
// order, by Box and Muller (cosine, then sine), of the uniform ones that splitmix64 makes.
inline Vectors planes(uint64_t seed, uint64_t set, uint64_t n, uint32_t head_dim) {
  const auto uniform = [&](uint64_t i) {  // from 1 on
    uint64_t z = seed + i * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  };
  Vectors out(n, Vector(head_dim));
  for (uint64_t i = 0; i < n * head_dim; ++i) {
    const uint64_t at = set * n * head_dim + i, pair = at / 2;
    const double radius = std::sqrt(-2.0 * std::log(uniform(2 * pair + 1)));
    const double angle = 2.0 * std::acos(-1.0) * uniform(2 * pair + 2);
    out[i / head_dim][i % head_dim] = radius * (at % 2 ? std::sin(angle) : std::cos(angle));
  }
  return out;
}

// One code per table: bit b is set where the plane's side is positive. kUnsure: where x lies nearer
// to one of the planes than `margin` times its length, on either side.
constexpr uint32_t kUnsure = UINT32_MAX;
inline Indices codes(const Hash& of, const Vector& x, double margin = 0) {
  Indices out(of.tables, 0);
  const double near = margin * std::sqrt(dot(x, x));
  for (uint32_t table = 0; table < of.tables; ++table)
    for (uint32_t bit = 0; bit < of.bits && out[table] != kUnsure; ++bit) {
      const double side = dot(x, of.planes[table * of.bits + bit]);
      if (std::abs(side) < near)
        out[table] = kUnsure;
      else if (side > 0)
        out[table] |= 1u << bit;
    }
  return out;
}
inline uint32_t hits(const Indices& a, const Indices& b) {
  uint32_t n = 0;
  for (size_t table = 0; table < a.size(); ++table) n += a[table] == b[table] ? 1 : 0;
  return n;
}
// At least, and at most so many of the tables agree.
inline std::pair<uint32_t, uint32_t> hit_bounds(const Indices& a, const Indices& b) {
  uint32_t sure = 0, unsure = 0;
  for (size_t table = 0; table < a.size(); ++table) {
    if (a[table] == kUnsure || b[table] == kUnsure)
      ++unsure;
    else
      sure += a[table] == b[table] ? 1 : 0;
  }
  return {sure, sure + unsure};
}
// Tokens whose code meets the query's in at least two tables.
inline Indices sampled(const Hash& of, const Vector& q, const Vectors& centred,
                       const Indices& tokens) {
  Indices out;
  const Indices code = codes(of, q);
  for (const uint32_t t : tokens)
    if (of.bits == 0 || hits(code, codes(of, centred[t])) >= 2) out.push_back(t);
  return out;
}

inline double cosine(const Vector& a, const Vector& b) {
  const double norm = std::sqrt(dot(a, a) * dot(b, b));
  return norm > 0 ? std::clamp(dot(a, b) / norm, -1.0, 1.0) : 0.0;
}
// Probability that two of L codes of K bits meet, for directions of this cosine.
inline double inclusion(double cosine, uint32_t bits, uint32_t tables) {
  const double p = std::pow(1.0 - std::acos(cosine) / std::acos(-1.0), bits);
  const double l = tables;
  return 1.0 - std::pow(1.0 - p, l) - l * p * std::pow(1.0 - p, l - 1.0);
}
inline double log_weight(double u) { return -std::log(u + 1e-4); }

inline Vector mean_key(const Vectors& k, const Indices& tokens) {
  Vector out(k.empty() ? 0 : k[0].size(), 0.0);
  for (const uint32_t t : tokens)
    for (size_t d = 0; d < out.size(); ++d) out[d] += k[t][d] / static_cast<double>(tokens.size());
  return out;
}
inline Vector minus(const Vector& a, const Vector& b) {
  Vector out = a;
  for (size_t d = 0; d < b.size(); ++d) out[d] -= b[d];
  return out;
}

}  // namespace kvasir::oracle::magicpig
