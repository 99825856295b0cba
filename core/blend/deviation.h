// How far reused K and V are from those that a full pass over the prompt would give.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// K and V of n tokens in one layer: k [n][k_width] and v [n][v_width], a token's kv heads side by
// side.
struct KvRows {
  const float *k, *v;
};

// Of each token j, what arXiv:2405.16444 calls KV deviation, of K and V alike:
//   deviation[j] = |k_j - k'_j| / rms(|k|) + |v_j - v'_j| / rms(|v|)
// k, v are fresh and k', v' reused; rms(|k|) = sqrt(mean over the n tokens of |k_j|^2). Each half
// is divided by the size of its own, or the larger of K and V would decide alone. Sums are in
// double. A half whose fresh values are all 0 counts its distances as they are.
std::vector<double> kv_deviation(const KvRows& fresh, const KvRows& reused, size_t n,
                                 size_t k_width, size_t v_width);

// The n_keep of the positions with the largest scores, ascending; equal scores go to the lower
// position. positions ascend; scores [positions].
std::vector<uint32_t> keep_highest(std::span<const uint32_t> positions,
                                   std::span<const double> scores, size_t n_keep);

// Spearman's rank correlation of two lists of one length, ties sharing the mean of their ranks; 0
// where a list is constant.
double rank_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace kvasir
