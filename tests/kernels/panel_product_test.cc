// Products of few rows with a panel against sums in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/panel_product.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::ElementType;
using kernels::kPanelWidth;

std::vector<float> random_values(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(random);
  return values;
}

float to_bf16(float value) {  // cut, not rounded: any bf16 value will do
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000u);
}

// w [n_in, 64] of bf16 values as the kernel wants it: pairs of inputs side by side.
std::vector<uint16_t> pack_bf16(const std::vector<float>& w, size_t n_in) {
  std::vector<uint16_t> panel((n_in + 1) / 2 * 2 * kPanelWidth);
  for (size_t k = 0; k < n_in; ++k) {
    for (size_t j = 0; j < kPanelWidth; ++j) {
      const auto bits = std::bit_cast<uint32_t>(w[k * kPanelWidth + j]);
      panel[(k / 2 * kPanelWidth + j) * 2 + k % 2] = static_cast<uint16_t>(bits >> 16);
    }
  }
  return panel;
}

struct Case {
  ElementType type;
  size_t n_rows, n_in, n_cols;
  bool accumulate;
};

void check(const Case& c) {
  const size_t x_stride = c.n_in + 3, y_stride = c.n_cols + 5;
  const auto x = random_values(c.n_rows * x_stride + 8, 1);
  auto w = random_values(c.n_in * kPanelWidth, 2);
  if (c.type == ElementType::kBF16) {
    for (float& value : w) value = to_bf16(value);
  }
  const auto packed = pack_bf16(w, c.n_in);
  const void* panel = c.type == ElementType::kBF16 ? static_cast<const void*>(packed.data())
                                                   : static_cast<const void*>(w.data());
  const auto before = random_values(c.n_rows * y_stride, 3);
  auto y = before;
  kernels::panel_product(c.type, x.data(), x_stride, c.n_rows, panel, c.n_in, c.n_cols,
                         c.accumulate, y.data(), y_stride);
  double worst = 0.0;
  size_t touched = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / y_stride, col = i % y_stride;
    if (col >= c.n_cols) {
      touched += y[i] != before[i];
      continue;
    }
    double sum = c.accumulate ? double{before[i]} : 0.0;
    for (size_t k = 0; k < c.n_in; ++k) {
      sum += double{x[row * x_stride + k]} * double{w[k * kPanelWidth + col]};
    }
    worst = std::max(worst, std::abs(sum - double{y[i]}));
  }
  CAPTURE(c.n_rows);
  CAPTURE(c.n_in);
  CAPTURE(c.n_cols);
  CHECK(touched == 0);
  // Rounding of n_in additions of terms up to 1: 2^-24 * n_in * sqrt(n_in) / 3 is generous.
  CHECK(worst < 1e-6 + 2e-8 * std::pow(static_cast<double>(c.n_in), 1.5));
}

}  // namespace

TEST_SUITE_BEGIN("kernels/panel_product");

TEST_CASE("products are the sums, for every number of rows, inputs and columns") {
  test::for_each_simd_target([] {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16}) {
      for (size_t n_rows = 1; n_rows <= kernels::kPanelProductRows; ++n_rows) {
        for (const size_t n_in : {1, 2, 31, 32, 255, 256, 257, 700}) {
          check({type, n_rows, n_in, 64, false});
          check({type, n_rows, n_in, 37, true});
        }
      }
      check({type, 3, 128, 1, false});
    }
  });
}
