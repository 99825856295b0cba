// Numbers for random cases: the same on every machine and library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle {

class Random {
 public:
  // Neighbouring seeds give unrelated numbers: the state is hashed, not counted on from the seed.
  explicit Random(uint64_t seed) : state_(seed) { state_ = bits() ^ (bits() << 1); }

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(bits() % n); }
  bool one_in(uint32_t n) { return below(n) == 0; }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::acos(-1.0) * uniform());
  }
  Vector normals(size_t n, double scale = 1.0) {
    Vector out(n);
    for (double& x : out) x = scale * normal();
    return out;
  }
  Vectors vectors(size_t n, size_t width, double scale = 1.0) {
    Vectors out;
    for (size_t i = 0; i < n; ++i) out.push_back(normals(width, scale));
    return out;
  }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[below(static_cast<uint32_t>(list.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace kvasir::oracle
