// Partial attention over a set of tokens, for one query and one query head, and its merge.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

namespace kvasir::kernels {

// A finished partial result is (o, lse): o [v_dim] normalised within its set, lse natural log.
// The empty set is (0, -inf).
inline constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// Merges the result of a disjoint set into (o, lse), in any order:
//   lse = ln(exp(lse_a) + exp(lse_b)),  o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b
// arXiv:1805.02867. Two empty sets stay empty; `other_o` may not overlap `o`.
inline void merge_attention(float* o, float* lse, const float* other_o, float other_lse,
                            size_t v_dim) {
  if (other_lse == kEmptyLse) return;
  if (*lse == kEmptyLse) {
    for (size_t d = 0; d < v_dim; ++d) o[d] = other_o[d];
    *lse = other_lse;
    return;
  }
  // In double: a chain of merges over many parts must not lose digits of lse.
  const double high = std::fmax(static_cast<double>(*lse), static_cast<double>(other_lse));
  const double a = std::exp(static_cast<double>(*lse) - high);
  const double b = std::exp(static_cast<double>(other_lse) - high);
  const auto keep = static_cast<float>(a / (a + b));
  const auto add = static_cast<float>(b / (a + b));
  for (size_t d = 0; d < v_dim; ++d) o[d] = keep * o[d] + add * other_o[d];
  *lse = static_cast<float>(high + std::log(a + b));
}

// Turns a running sum (o = sum exp(logit - max_logit) v, exp_sum) into (o, lse) in place.
inline void finish_attention(float* o, float max_logit, float exp_sum, size_t v_dim, float* lse) {
  const bool empty = exp_sum == 0.0f;
  const float inverse = empty ? 0.0f : 1.0f / exp_sum;
  for (size_t d = 0; d < v_dim; ++d) o[d] = empty ? 0.0f : o[d] * inverse;
  *lse = empty ? kEmptyLse : max_logit + std::log(exp_sum);
}

}  // namespace kvasir::kernels
