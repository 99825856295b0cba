// Elementwise row operations against their formulas in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_ops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/larger_or_nan.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;

constexpr size_t kRowLengths[] = {1, 3, 8, 15, 16, 17, 64, 100, 1024, 1025, 5000};

std::vector<float> normal_values(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Largest |a - b| / (1 + |b|).
double error(const std::vector<float>& a, const std::vector<double>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = test::larger_or_nan(worst, std::abs(double{a[i]} - b[i]) / (1.0 + std::abs(b[i])));
  }
  return worst;
}

}  // namespace

TEST_SUITE_BEGIN("kernels/row_ops");

TEST_CASE("rms_norm divides by the root of the mean square, in place or not") {
  test::for_each_simd_target([] {
    for (const size_t n : kRowLengths) {
      for (const float scale : {1e-4f, 1.0f, 1e4f}) {
        CAPTURE(n);
        const auto x = normal_values(n, 1, scale), weight = normal_values(n, 2);
        double squares = 0.0;
        for (const float value : x) squares += double{value} * double{value};
        const double rms = std::sqrt(squares / static_cast<double>(n) + double{1e-5f});
        std::vector<double> want(n);
        for (size_t i = 0; i < n; ++i) want[i] = double{x[i]} / rms * double{weight[i]};
        std::vector<float> got(n);
        kernels::rms_norm(x.data(), weight.data(), n, 1e-5f, got.data());
        CHECK(error(got, want) < 5e-7);
        auto in_place = x;
        kernels::rms_norm(in_place.data(), weight.data(), n, 1e-5f, in_place.data());
        CHECK(in_place == got);
      }
    }
  });
}

TEST_CASE("swiglu is gate * sigmoid(gate) * up, also where exp would overflow") {
  test::for_each_simd_target([] {
    for (const size_t n : kRowLengths) {
      CAPTURE(n);
      auto gate = normal_values(n, 3, 5.0f);
      const auto up = normal_values(n, 4);
      gate[0] = -200.0f;
      gate[n / 2] = 200.0f;
      gate[n - 1] = n > 2 ? 0.0f : gate[n - 1];
      std::vector<double> want(n);
      for (size_t i = 0; i < n; ++i) {
        want[i] = double{gate[i]} / (1.0 + std::exp(-double{gate[i]})) * double{up[i]};
      }
      kernels::swiglu(gate.data(), up.data(), n);
      CHECK(error(gate, want) < 5e-7);
    }
  });
}

TEST_CASE("geglu is gelu(gate) * up, also where tanh has its limits") {
  test::for_each_simd_target([] {
    for (const size_t n : kRowLengths) {
      CAPTURE(n);
      auto gate = normal_values(n, 7, 3.0f);
      const auto up = normal_values(n, 8);
      gate[0] = -1e12f;
      gate[n / 2] = 1e12f;
      gate[n - 1] = n > 2 ? 0.0f : gate[n - 1];
      std::vector<double> want(n);
      for (size_t i = 0; i < n; ++i) {
        const double g = gate[i], u = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
        want[i] = g / 2 * (1.0 + std::tanh(u)) * double{up[i]};
      }
      kernels::geglu(gate.data(), up.data(), n);
      CHECK(error(gate, want) < 1e-6);
    }
  });
}

TEST_CASE("add_to adds and leaves what lies behind") {
  test::for_each_simd_target([] {
    for (const size_t n : kRowLengths) {
      const auto x = normal_values(n + 1, 5), before = normal_values(n + 1, 6);
      auto y = before;
      kernels::add_to(x.data(), n, y.data());
      bool all = y[n] == before[n];
      for (size_t i = 0; i < n; ++i) all = all && y[i] == x[i] + before[i];
      CHECK(all);
    }
  });
}

TEST_CASE("mean_of_rows divides, then adds row after row, and leaves what lies behind") {
  test::for_each_simd_target([] {
    for (const size_t width : {1, 7, 31, 33, 127, 1000}) {
      for (const size_t n_rows : {1, 2, 3, 7, 64, 129}) {
        CAPTURE(width);
        CAPTURE(n_rows);
        auto x = normal_values(n_rows * width, 9, 100.0f);
        x[width / 2] = -0.0f;
        std::vector<double> mean(width);
        std::vector<float> in_order(width);  // the bits that the header promises
        for (size_t r = 0; r < n_rows; ++r) {
          for (size_t i = 0; i < width; ++i) {
            mean[i] += double{x[r * width + i]} / static_cast<double>(n_rows);
            in_order[i] += x[r * width + i] / static_cast<float>(n_rows);
          }
        }
        std::vector<float> y(width + 1, 42.0f);
        kernels::mean_of_rows(x.data(), n_rows, width, y.data());
        CHECK(y.back() == 42.0f);
        y.pop_back();
        CHECK(std::memcmp(y.data(), in_order.data(), width * sizeof(float)) == 0);
        double worst = 0.0;
        for (size_t i = 0; i < width; ++i)
          worst = test::larger_or_nan(worst, std::abs(double{y[i]} - mean[i]));
        CHECK(worst < 1e-4);  // of values around 100, up to 129 roundings
      }
    }
  });
}

TEST_CASE("mean_of_rows: large values do not overflow, infinities and NaN are seen") {
  test::for_each_simd_target([] {
    const float largest = std::numeric_limits<float>::max();
    const float inf = std::numeric_limits<float>::infinity();
    for (const size_t width : {1, 33}) {
      std::vector<float> x(4 * width, largest), y(width);
      const auto all = [&](const auto& holds) { return std::all_of(y.begin(), y.end(), holds); };
      kernels::mean_of_rows(x.data(), 4, width, y.data());
      CHECK(all([&](float value) { return value == largest; }));
      std::fill_n(x.begin() + static_cast<ptrdiff_t>(width), width, -inf);
      kernels::mean_of_rows(x.data(), 4, width, y.data());
      CHECK(all([&](float value) { return value == -inf; }));
      std::fill_n(x.begin(), width, inf);
      kernels::mean_of_rows(x.data(), 4, width, y.data());
      CHECK(all([](float value) { return std::isnan(value); }));
    }
  });
}
