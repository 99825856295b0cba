// Oracles of the block summaries: plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/representative.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/reference/attention.h"

namespace kvasir::kernels::reference {

ChannelStats channel_stats(const KeyRows& rows) {
  ChannelStats stats;
  if (rows.n == 0) return stats;
  for (size_t d = 0; d < rows.head_dim; ++d) {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    double sum = 0;
    for (size_t t = 0; t < rows.n; ++t) {
      const void* row = static_cast<const char*>(rows.k) + t * rows.token_stride;
      const double x = element(row, d, rows.type);
      low = std::fmin(low, x);
      high = std::fmax(high, x);
      sum += x;
    }
    stats.min.push_back(low);
    stats.max.push_back(high);
    stats.mean.push_back(sum / static_cast<double>(rows.n));
  }
  return stats;
}

double score_dot(const float* q, const Records& records, size_t record) {
  const void* at = static_cast<const char*>(records.base) + record * records.record_bytes;
  double sum = 0;
  for (size_t d = 0; d < records.head_dim; ++d) sum += q[d] * element(at, d, records.type);
  return sum;
}

double score_min_max(const float* q, double box_scale, const Records& records, size_t record) {
  const void* at = static_cast<const char*>(records.base) + record * records.record_bytes;
  double sum = 0;
  for (size_t d = 0; d < records.head_dim; ++d) {
    const double low = element(at, d, records.type);
    const double high = element(at, records.head_dim + d, records.type);
    sum += q[d] * (low + high) / 2 + box_scale * std::fabs(q[d]) * (high - low) / 2;
  }
  return sum;
}

std::vector<uint32_t> top_k(std::span<const float> score, size_t k) {
  std::vector<uint32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (std::isnan(score[a]) || std::isnan(score[b])) {
      return !std::isnan(score[a]) && std::isnan(score[b]);
    }
    return score[a] > score[b];
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

namespace {

double round_to_fp8(double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -6) - 3);
  return std::copysign(std::fmin(std::fabs(std::nearbyint(x / step) * step), 448.0), x);
}

}  // namespace

double round_to(double x, ElementType type) {
  if (type == ElementType::kF32 || x == 0) return x;
  if (type == ElementType::kFp8E4M3) return round_to_fp8(x);
  if (!std::isfinite(x)) return x;
  const bool half = type == ElementType::kF16;
  const int precision = half ? 11 : 8;   // significand bits, the hidden one included
  const int lowest = half ? -14 : -126;  // exponent of the smallest normal value
  const double largest = half ? 65504.0 : std::ldexp(255.0, 120);
  const int exponent = std::max(std::ilogb(x), lowest);
  const double step = std::ldexp(1.0, exponent - precision + 1);
  const double rounded = std::nearbyint(x / step) * step;  // default mode: ties to even
  if (std::fabs(rounded) > largest) return std::copysign(INFINITY, x);
  return rounded;
}

}  // namespace kvasir::kernels::reference
