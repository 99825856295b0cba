// Block summaries, their scores, element rounding and top-k in double or by sorting: oracles.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/representative.h"

namespace kvasir::kernels::reference {

// Per channel over all rows: [head_dim] each. No rows: empty vectors.
struct ChannelStats {
  std::vector<double> min, max, mean;
};
ChannelStats channel_stats(const KeyRows& rows);

// One query head against one record.
double score_dot(const float* q, const Records& records, size_t record);
double score_min_max(const float* q, double box_scale, const Records& records, size_t record);

// Indices of the k best scores, ascending; the order of kernels/topk.h, by a full sort.
std::vector<uint32_t> top_k(std::span<const float> score, size_t k);

// The stored value nearest to x, ties to even, overflow to infinity, found from the definition of
// the format (significand bits and exponent range), not from bit patterns.
double round_to(double x, ElementType type);

}  // namespace kvasir::kernels::reference
