// Products of few rows with a panel against sums in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/panel_product.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/simd_target.h"
#include "tests/support/effort.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::kPanelWidth;
using kernels::PanelType;

std::vector<float> uniform_values(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(random);
  return values;
}

float to_bf16(float value) {  // cut, not rounded: any bf16 value will do
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000u);
}

float to_f16(float value) {  // cut likewise; what would be a subnormal becomes 0
  if (std::abs(value) < 0x1p-14f) return 0.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFFE000u);
}

float representable(PanelType type, float value) {
  if (type == PanelType::kF32) return value;
  return type == PanelType::kF16 ? to_f16(value) : to_bf16(value);
}

// A representable value.
uint16_t bits_of(PanelType type, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (type != PanelType::kF16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t half = magnitude == 0 ? 0 : (magnitude >> 13) - (uint32_t{127 - 15} << 10);
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

// w [n_in, 64] of representable values as the kernel wants it in 16 bits.
std::vector<uint16_t> pack(PanelType type, const std::vector<float>& w, size_t n_in) {
  std::vector<uint16_t> panel((n_in + 1) / 2 * 2 * kPanelWidth);
  for (size_t k = 0; k < n_in; ++k)
    for (size_t j = 0; j < kPanelWidth; ++j) {
      const size_t at = type == PanelType::kBF16Pairs ? (k / 2 * kPanelWidth + j) * 2 + k % 2
                                                      : k * kPanelWidth + j;
      panel[at] = bits_of(type, w[k * kPanelWidth + j]);
    }
  return panel;
}

constexpr PanelType kTypes[] = {PanelType::kF32, PanelType::kF16, PanelType::kBF16,
                                PanelType::kBF16Pairs};

struct Case {
  PanelType type;
  size_t n_rows, n_in, n_cols;
  bool accumulate;
  size_t block = 1024;
};

void check(const Case& c) {
  const size_t x_stride = c.n_in + 3, y_stride = c.n_cols + 5;
  const auto x = uniform_values(c.n_rows * x_stride + 8, 1);
  auto w = uniform_values(c.n_in * kPanelWidth, 2);
  for (float& value : w) value = representable(c.type, value);
  const auto packed = pack(c.type, w, c.n_in);
  const void* panel = c.type == PanelType::kF32 ? static_cast<const void*>(w.data())
                                                : static_cast<const void*>(packed.data());
  const auto before = uniform_values(c.n_rows * y_stride, 3);
  auto y = before;
  kernels::panel_product(c.type, x.data(), x_stride, c.n_rows, panel, c.n_in, c.block, c.n_cols,
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
    worst = test::larger_or_nan(worst, std::abs(sum - double{y[i]}));
  }
  CAPTURE(c.n_rows);
  CAPTURE(c.n_in);
  CAPTURE(c.n_cols);
  CHECK(touched == 0);
  // Rounding of n_in additions of terms up to 1: 2^-24 * n_in * sqrt(n_in) / 3 is generous.
  CHECK(worst < 1e-6 + 2e-8 * std::pow(static_cast<double>(c.n_in), 1.5));
}

// The order the header promises, in plain code. `fused`: multiply-adds round once.
float chained(const Case& c, const float* x, const std::vector<float>& w, size_t col, float before,
              bool fused) {
  float total = 0.0f;
  for (size_t begin = 0; begin < c.n_in; begin += c.block) {
    const size_t end = std::min(c.n_in, begin + c.block);
    float sum = 0.0f;
    const auto add = [&](size_t k) {
      if (k >= end) return;
      const float weight = w[k * kPanelWidth + col];
      const double product = double{x[k]} * double{weight};  // exact
      sum = fused ? std::fma(x[k], weight, sum) : static_cast<float>(product) + sum;
    };
    for (size_t k = begin; k < end; k += 2) {
      const bool odd_first = c.type == PanelType::kBF16Pairs;
      add(odd_first ? k + 1 : k);
      add(odd_first ? k : k + 1);
    }
    total = begin == 0 ? sum : total + sum;
  }
  return c.accumulate ? before + total : total;
}

// Every output to the bit for every number of rows up to c.n_rows, from first_rows on, and the same
// for a row alone. Rows are the same ones in each: what they are to give is computed once.
void check_bits(const Case& c, size_t first_rows = 1) {
  CAPTURE(c.n_in);
  CAPTURE(c.block);
  auto x = uniform_values(c.n_rows * c.n_in, 1), w = uniform_values(c.n_in * kPanelWidth, 2);
  if (c.type == PanelType::kBF16Pairs)
    for (float& value : x) value = to_bf16(value);
  for (float& value : w) value = representable(c.type, value);
  const auto packed = pack(c.type, w, c.n_in);
  const void* panel = c.type == PanelType::kF32 ? static_cast<const void*>(w.data())
                                                : static_cast<const void*>(packed.data());
  const auto before = uniform_values(c.n_rows * c.n_cols, 3);
  const std::string target = kernels::simd_target_name();
  const bool fused = !target.starts_with("SS") && target != "EMU128" && target != "SCALAR";
  auto alone = before, want = before;
  for (size_t r = 0; r < c.n_rows; ++r) {
    kernels::panel_product(c.type, x.data() + r * c.n_in, c.n_in, 1, panel, c.n_in, c.block,
                           c.n_cols, c.accumulate, alone.data() + r * c.n_cols, c.n_cols);
    for (size_t col = 0; col < c.n_cols; ++col)
      want[r * c.n_cols + col] =
          chained(c, x.data() + r * c.n_in, w, col, before[r * c.n_cols + col], fused);
  }
  CHECK(alone == want);
  for (size_t n_rows = first_rows; n_rows <= c.n_rows; ++n_rows) {
    CAPTURE(n_rows);
    auto y = before;
    kernels::panel_product(c.type, x.data(), c.n_in, n_rows, panel, c.n_in, c.block, c.n_cols,
                           c.accumulate, y.data(), c.n_cols);
    const auto end = static_cast<ptrdiff_t>(n_rows * c.n_cols);
    CHECK(std::equal(y.begin(), y.begin() + end, want.begin()));
    CHECK(std::equal(y.begin() + end, y.end(), before.begin() + end));
  }
}

}  // namespace

TEST_SUITE_BEGIN("kernels/panel_product");

TEST_CASE("products are the sums, for every number of rows, inputs and columns") {
  test::for_each_simd_target([] {
    for (const PanelType type : kTypes) {
      for (size_t n_rows = 1; n_rows <= 8; ++n_rows) {
        for (const size_t n_in : {1, 2, 31, 32, 255, 256, 257, 700}) {
          check({type, n_rows, n_in, 64, false});
          check({type, n_rows, n_in, 37, true});
        }
      }
      check({type, 3, 128, 1, false});
    }
  });
}

TEST_CASE("a row's sum has one order, whatever the number of rows, to the bit") {
  test::for_each_simd_target([] {
    for (const PanelType type : kTypes) {
      for (const size_t n_in : {1, 2, 255, 701}) {
        if (test::few_cases() && n_in > 255) continue;
        check_bits({type, kernels::kPanelProductRows, n_in, 64, false, 512});
        check_bits({type, kernels::kPanelProductRows, n_in, 37, true, 512});
      }
      for (const size_t block : {2, 256, 300, 512, 1024}) {
        if (test::few_cases() && block % 256 == 0) continue;
        check_bits({type, 5, 1101, 64, true, block}, 5);
      }
    }
  });
}

TEST_CASE(
    "subnormals of pairs are zero, as the instruction for bf16 takes them, and others are not") {
  test::for_each_simd_target([] {
    const float tiny = std::ldexp(1.0f, -130), large = std::ldexp(1.0f, 20);
    const std::vector<float> x{tiny, large}, w = [&] {
      std::vector<float> values(2 * kPanelWidth, 0.0f);
      for (size_t j = 0; j < kPanelWidth; ++j) values[j] = large, values[kPanelWidth + j] = tiny;
      return values;
    }();
    const auto packed = pack(PanelType::kBF16Pairs, w, 2), rows = pack(PanelType::kBF16, w, 2);
    std::vector<float> y(kPanelWidth, 1.0f);
    kernels::panel_product(PanelType::kBF16Pairs, x.data(), 2, 1, packed.data(), 2, 512, 64, false,
                           y.data(), 64);
    CHECK(y == std::vector<float>(kPanelWidth, 0.0f));
    kernels::panel_product(PanelType::kF32, x.data(), 2, 1, w.data(), 2, 512, 64, false, y.data(),
                           64);
    CHECK(y == std::vector<float>(kPanelWidth, 2 * tiny * large));
    kernels::panel_product(PanelType::kBF16, x.data(), 2, 1, rows.data(), 2, 512, 64, false,
                           y.data(), 64);
    CHECK(y == std::vector<float>(kPanelWidth, 2 * tiny * large));
    CHECK(tiny / 2 > 0.0f);  // the thread's mode is what it was
  });
}
