// SimHash codes and the probability of being drawn (MagicPIG, arXiv:2410.16179): random planes, K
// bits per table, L tables, drawn when at least 2 tables agree.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::magicpig {

// K bits of L tables each: K * L Gaussian planes through the origin, from the seed alone. `set`:
// which of the sets that lie one behind the other in its stream of numbers.
class Planes {
 public:
  Planes(uint64_t seed, uint64_t set, uint32_t n_bits, uint32_t n_tables, uint32_t head_dim);

  // code[i * L + l]: bit b of table l is set when x_i . plane(l, b) > 0.   n vectors, x_stride
  // floats apart; `work` is scratch that it may grow.
  void codes(const float* x, size_t x_stride, size_t n, uint16_t* code,
             std::vector<float>& work) const;

  // Element d of plane (table, bit): for tests.
  float plane(uint32_t table, uint32_t bit, uint32_t d) const;
  uint64_t bytes() const { return panels_.size() * sizeof(float); }

 private:
  uint32_t n_bits_, n_tables_, head_dim_;
  std::vector<float> panels_;  // [panel of 64 planes][head_dim][64]
};

// 64 bits that depend on everything that went in; splitmix64's finaliser.
uint64_t mix(uint64_t x);

}  // namespace kvasir::magicpig
