// Attention, its mass and its merge in double: plain loops, two passes, nothing shared with the
// fast kernels but the description of the rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvasir::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

uint16_t read_u16(const void* row, size_t index) {
  uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(row) + 2 * index, sizeof(bits));
  return bits;
}

// Of a normal double: std::ldexp() took most of the time of the tests of kernels.
double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction ? std::numeric_limits<double>::quiet_NaN() : -sign * kMinusInfinity;
  }
  if (exponent == 0) return sign * fraction * power_of_two(-24);
  return sign * (1024 + fraction) * power_of_two(exponent - 25);
}

double bfloat_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double fp8_value(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  const double sign = (bits & 0x80) ? -1.0 : 1.0;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * fraction * power_of_two(-9);
  return sign * (8 + fraction) * power_of_two(exponent - 10);
}

// A scale, then 32 bytes or 16 pairs of nibbles that stand for elements 16 apart.
double group_value(const void* row, size_t index, bool is_nibble) {
  const auto* group = static_cast<const uint8_t*>(row) + index / 32 * (is_nibble ? 18 : 34);
  const size_t i = index % 32;
  const double scale = half_value(read_u16(group, 0));
  if (!is_nibble) return scale * static_cast<int8_t>(group[2 + i]);
  const int pair = group[2 + i % 16];
  return scale * ((i < 16 ? pair % 16 : pair / 16) - 8);
}

const void* row_at(const void* base, uint64_t stride, uint32_t token) {
  return static_cast<const char*>(base) + stride * token;
}

uint32_t token_of(const KvRows& item, uint32_t row) { return item.tokens ? item.tokens[row] : row; }

bool visible(const KvRows& item, uint32_t token, size_t query, const PositionMask& mask) {
  if (!mask.q_pos) return true;
  const int64_t key = item.pos ? item.pos[token] : item.first_pos + token;
  const int64_t distance = static_cast<int64_t>(mask.q_pos[query]) - key;
  if (distance < 0 || distance < mask.dist_min) return false;
  return mask.dist_max == UINT32_MAX || distance < mask.dist_max;
}

// A row of k, read as doubles, and one query head.
double logit(const AttentionShape& shape, const float* q, uint32_t g, const double* k,
             const KvRows& item, uint32_t row) {
  double dot = 0;
  for (size_t d = 0; d < shape.head_dim; ++d) {
    dot += static_cast<double>(q[g * shape.head_dim + d]) * k[d];
  }
  double x = static_cast<double>(shape.softmax_scale) * dot;
  if (shape.softcap != 0.0f) {
    const double cap = shape.softcap;
    x = cap * std::tanh(x / cap);
  }
  if (item.log_weight && item.weight_width != 0) {
    const size_t column = item.weight_width == 1 ? 0 : g;
    x += item.log_weight[static_cast<size_t>(row) * item.weight_row_stride + column];
  }
  return x;
}

// The logits of all rows (-inf where hidden) of each query head. A row is read once for all of
// them: reading took most of the time of the tests of attention.
std::vector<std::vector<double>> all_logits(const AttentionShape& shape, const float* q,
                                            size_t query, const PositionMask& mask,
                                            std::span<const KvRows> items) {
  std::vector<std::vector<double>> logits(shape.group_size);
  std::vector<double> k(shape.head_dim);
  for (const KvRows& item : items) {
    for (uint32_t row = item.begin; row < item.end; ++row) {
      const uint32_t token = token_of(item, row);
      const bool seen = visible(item, token, query, mask);
      if (seen) {
        elements(row_at(item.k, item.k_token_stride, token), k.size(), shape.k_type, k.data());
      }
      for (uint32_t g = 0; g < shape.group_size; ++g) {
        logits[g].push_back(seen ? logit(shape, q, g, k.data(), item, row) : kMinusInfinity);
      }
    }
  }
  return logits;
}

double log_sum_exp(const std::vector<double>& logits) {
  double high = kMinusInfinity;
  for (double x : logits) high = std::fmax(high, x);
  if (high == kMinusInfinity) return high;
  double sum = 0;
  for (double x : logits) sum += std::exp(x - high);
  return high + std::log(sum);
}

}  // namespace

double element(const void* row, size_t index, ElementType type) {
  if (type == ElementType::kF16) return half_value(read_u16(row, index));
  if (type == ElementType::kBF16) return bfloat_value(read_u16(row, index));
  if (type == ElementType::kQ8_0 || type == ElementType::kQ4_0) {
    return group_value(row, index, type == ElementType::kQ4_0);
  }
  if (type == ElementType::kFp8E4M3) return fp8_value(static_cast<const uint8_t*>(row)[index]);
  float value = 0;
  std::memcpy(&value, static_cast<const char*>(row) + 4 * index, sizeof(value));
  return value;
}

void elements(const void* row, size_t n, ElementType type, double* out) {
  const auto fill = [&](auto value) {
    for (size_t i = 0; i < n; ++i) out[i] = value(i);
  };
  switch (type) {  // once per row, not per element
    case ElementType::kF16:
      return fill([&](size_t i) { return half_value(read_u16(row, i)); });
    case ElementType::kBF16:
      return fill([&](size_t i) { return bfloat_value(read_u16(row, i)); });
    case ElementType::kQ8_0:
      return fill([&](size_t i) { return group_value(row, i, false); });
    case ElementType::kQ4_0:
      return fill([&](size_t i) { return group_value(row, i, true); });
    default:
      return fill([&](size_t i) { return element(row, i, type); });
  }
}

void attention(const AttentionShape& shape, const float* q, size_t query, const PositionMask& mask,
               std::span<const KvRows> items, double* o, double* lse) {
  std::fill_n(o, static_cast<size_t>(shape.group_size) * shape.v_dim, 0.0);
  const auto logits = all_logits(shape, q, query, mask, items);
  for (uint32_t g = 0; g < shape.group_size; ++g) lse[g] = log_sum_exp(logits[g]);
  std::vector<double> v(shape.v_dim);
  size_t i = 0;
  for (const KvRows& item : items) {
    for (uint32_t row = item.begin; row < item.end; ++row, ++i) {
      const uint32_t token = token_of(item, row);
      if (!visible(item, token, query, mask)) continue;
      elements(row_at(item.v, item.v_token_stride, token), v.size(), shape.v_type, v.data());
      for (uint32_t g = 0; g < shape.group_size; ++g) {
        if (logits[g][i] == kMinusInfinity) continue;
        const double p = std::exp(logits[g][i] - lse[g]);
        double* out = o + static_cast<size_t>(g) * shape.v_dim;
        for (size_t d = 0; d < shape.v_dim; ++d) out[d] += p * v[d];
      }
    }
  }
}

void attention_mass(const AttentionShape& shape, const float* q, size_t query,
                    const PositionMask& mask, std::span<const KvRows> items,
                    const double* lse_final, double* mass) {
  const auto logits = all_logits(shape, q, query, mask, items);
  for (uint32_t g = 0; g < shape.group_size; ++g) {
    for (size_t i = 0; i < logits[g].size(); ++i) {
      const bool empty = logits[g][i] == kMinusInfinity || lse_final[g] == kMinusInfinity;
      mass[g * logits[g].size() + i] = empty ? 0.0 : std::exp(logits[g][i] - lse_final[g]);
    }
  }
}

void merge_attention(double* o, double* lse, const double* other_o, double other_lse,
                     size_t v_dim) {
  const double high = std::fmax(*lse, other_lse);
  if (high == kMinusInfinity) return;
  const double merged = high + std::log(std::exp(*lse - high) + std::exp(other_lse - high));
  for (size_t d = 0; d < v_dim; ++d) {
    o[d] = std::exp(*lse - merged) * o[d] + std::exp(other_lse - merged) * other_o[d];
  }
  *lse = merged;
}

}  // namespace kvasir::kernels::reference
