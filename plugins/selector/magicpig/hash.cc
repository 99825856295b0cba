// See hash.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/hash.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/panel_product.h"

namespace kvasir::magicpig {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// Uniform in (0, 1): i-th number of the stream.
double uniform(uint64_t seed, uint64_t i) {
  return (static_cast<double>(mix(seed + (i + 1) * kGolden) >> 11) + 0.5) * 0x1p-53;
}

// i-th number of a stream of standard normal ones: Box and Muller, cosine and sine in turn.
float gaussian(uint64_t seed, uint64_t i) {
  const uint64_t pair = i & ~uint64_t{1};
  const double radius = std::sqrt(-2.0 * std::log(uniform(seed, pair)));
  const double angle = 2.0 * std::numbers::pi * uniform(seed, pair + 1);
  return static_cast<float>(radius * (i == pair ? std::cos(angle) : std::sin(angle)));
}

}  // namespace

uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

Planes::Planes(uint64_t seed, uint64_t set, uint32_t n_bits, uint32_t n_tables, uint32_t head_dim)
    : n_bits_(n_bits), n_tables_(n_tables), head_dim_(head_dim) {
  constexpr uint64_t kWidth = kernels::kPanelWidth;
  const uint64_t n_planes = uint64_t{n_bits} * n_tables;
  const uint64_t first = set * n_planes * head_dim;
  panels_.resize((n_planes + kWidth - 1) / kWidth * kWidth * head_dim);
  for (uint64_t p = 0; p < n_planes; ++p)
    for (uint64_t d = 0; d < head_dim; ++d)
      panels_[(p / kWidth * head_dim + d) * kWidth + p % kWidth] =
          gaussian(seed, first + p * head_dim + d);
}

float Planes::plane(uint32_t table, uint32_t bit, uint32_t d) const {
  constexpr uint64_t kWidth = kernels::kPanelWidth;
  const uint64_t p = uint64_t{table} * n_bits_ + bit;
  return panels_[(p / kWidth * head_dim_ + d) * kWidth + p % kWidth];
}

void Planes::codes(const float* x, size_t x_stride, size_t n, uint16_t* code,
                   std::vector<float>& work) const {
  const size_t n_planes = size_t{n_bits_} * n_tables_;
  work.resize(kernels::kPanelProductRows * n_planes);
  for (size_t at = 0; at < n; at += kernels::kPanelProductRows) {
    const size_t rows = std::min(kernels::kPanelProductRows, n - at);
    for (size_t p = 0; p < n_planes; p += kernels::kPanelWidth)
      kernels::panel_product(kernels::PanelType::kF32, x + at * x_stride, x_stride, rows,
                             panels_.data() + p * head_dim_, head_dim_, head_dim_,
                             std::min(kernels::kPanelWidth, n_planes - p), false, work.data() + p,
                             n_planes);
    for (size_t i = 0; i < rows; ++i) {
      const float* y = work.data() + i * n_planes;
      for (uint32_t table = 0; table < n_tables_; ++table) {
        uint32_t bits = 0;
        for (uint32_t b = 0; b < n_bits_; ++b) bits |= uint32_t{*y++ > 0.0f} << b;
        code[(at + i) * n_tables_ + table] = static_cast<uint16_t>(bits);
      }
    }
  }
}

}  // namespace kvasir::magicpig
