// How likely random hyperplanes draw a token, and what it then weighs: MagicPIG, arXiv:2410.16179.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

struct Collisions {
  uint32_t n_bits = 0, n_tables = 0;  // K planes per table, L tables
  double floor = 0.0;                 // added to the probability
};

// weight[i] = -ln(u + floor), u the probability that a query and a key of this cosine have the same
// code in two of the L tables or more:
//   p = (1 - acos(cosine) / pi)^K,  u = 1 - (1 - p)^L - L p (1 - p)^(L - 1)
// The cosine is (weight[i] - offset) / (length * norm[i]), at most 1 and at least -1; 0 where that
// is no number. In double; about 1e-12 of the result and 1e-15 / (u + floor).
//   weight [n] f32, in place: q . k before; offset q . m, length |q|, norm [n] |k - m| for keys
//   that are centred at m
void collision_log_weights(const Collisions& of, double offset, double length, const float* norm,
                           size_t n, float* weight);

}  // namespace kvasir::kernels
