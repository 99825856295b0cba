// Rotations of rows on the device against their definition in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rotate_rows.h"

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <random>
#include <tuple>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/support/larger_or_nan.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

// Below, at and above a warp and a block of threads, and the widths of models.
constexpr uint32_t kPairCounts[] = {1, 3, 16, 31, 32, 33, 40, 64, 127, 257};

struct Case {
  uint32_t n_tokens, n_heads, head_dim, n_pairs;
  std::vector<float> cos, sin, x;

  Case(uint32_t tokens, uint32_t heads, uint32_t pairs, uint32_t rest)
      : n_tokens(tokens), n_heads(heads), head_dim(2 * pairs + rest), n_pairs(pairs) {
    std::mt19937 random(pairs * 31 + tokens);
    std::normal_distribution<float> normal;
    x.resize(size_t{tokens} * heads * head_dim);
    for (float& value : x) value = normal(random);
    for (uint32_t i = 0; i < tokens * pairs; ++i) {
      const float angle = 3.0f * normal(random);
      cos.push_back(1.3f * std::cos(angle));  // YaRN's are longer than 1
      sin.push_back(1.3f * std::sin(angle));
    }
  }
  std::vector<float> rotated(bool is_interleaved) const {
    const DeviceArray<float> on_cos(cos), on_sin(sin), on_x(x);
    rotate_rows({address(on_cos), address(on_sin), address(on_x), n_tokens, n_heads, head_dim,
                 n_pairs, is_interleaved},
                {});
    return on_x.values();
  }
  // Pairs as complex numbers.
  std::vector<double> oracle(bool is_interleaved) const {
    std::vector<double> y(x.begin(), x.end());
    for (uint32_t row = 0; row < n_tokens * n_heads; ++row)
      for (uint32_t i = 0; i < n_pairs; ++i) {
        const size_t head = size_t{row} * head_dim;
        const size_t real = head + (is_interleaved ? 2 * i : i);
        const size_t imaginary = head + (is_interleaved ? 2 * i + 1 : i + n_pairs);
        const size_t at = size_t{row / n_heads} * n_pairs + i;
        const std::complex<double> turned =
            std::complex<double>(x[real], x[imaginary]) * std::complex<double>(cos[at], sin[at]);
        y[real] = turned.real();
        y[imaginary] = turned.imag();
      }
    return y;
  }
};

}  // namespace

TEST_SUITE("kernels/cuda/rotate_rows") {
  TEST_CASE("pairs of every head turn by the angles of their token, and nothing else changes") {
    for (const bool is_interleaved : {true, false})
      for (const uint32_t n_pairs : kPairCounts)
        for (const auto& [tokens, heads, rest] :
             {std::tuple{1u, 1u, 0u}, {3u, 5u, 0u}, {2u, 7u, 1u}, {2u, 3u, 37u}}) {
          const Case c(tokens, heads, n_pairs, rest);
          CAPTURE(is_interleaved);
          CAPTURE(n_pairs);
          CAPTURE(rest);
          const std::vector<float> got = c.rotated(is_interleaved);
          const std::vector<double> want = c.oracle(is_interleaved);
          double worst = 0;
          bool rest_stays = true;
          for (size_t i = 0; i < got.size(); ++i) {
            worst = kvasir::test::larger_or_nan(
                worst, std::abs(got[i] - want[i]) / (1.0 + std::abs(want[i])));
            if (i % c.head_dim >= 2 * n_pairs) rest_stays = rest_stays && got[i] == c.x[i];
          }
          CHECK(worst < 1e-6);  // two roundings of at most 6
          CHECK(rest_stays);
          CHECK(got != c.x);
        }
  }

  TEST_CASE("a token has the bits that it has alone, and no token is none") {
    const Case c(5, 3, 20, 2);
    for (const bool is_interleaved : {true, false}) {
      const std::vector<float> together = c.rotated(is_interleaved);
      for (uint32_t t = 0; t < c.n_tokens; ++t) {
        Case alone(1, c.n_heads, c.n_pairs, 2);
        const size_t width = size_t{c.n_heads} * c.head_dim;
        const auto rows = [](const std::vector<float>& of, size_t at, size_t n) {
          const auto begin = of.begin() + static_cast<std::ptrdiff_t>(at * n);
          return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(n));
        };
        alone.x = rows(c.x, t, width);
        alone.cos = rows(c.cos, t, c.n_pairs);
        alone.sin = rows(c.sin, t, c.n_pairs);
        CHECK(alone.rotated(is_interleaved) == rows(together, t, width));
      }
    }
    const DeviceArray<float> x(c.x);
    rotate_rows({0, 0, address(x), 0, c.n_heads, c.head_dim, c.n_pairs, true}, {});
    CHECK(x.values() == c.x);
  }
}
