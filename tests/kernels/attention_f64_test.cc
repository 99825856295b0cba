// Dot products, weights and sums in double against plain loops, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_f64.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;

constexpr double kDoubleInf = std::numeric_limits<double>::infinity();
constexpr size_t kDims[] = {1, 3, 8, 17, 64, 80, 128, 129};

}  // namespace

TEST_SUITE_BEGIN("kernels/attention_f64");

TEST_CASE("dots_f64 adds exact products, of any number of queries and rows that lie apart") {
  test::for_each_simd_target([] {
    for (const size_t dim : kDims)
      for (const size_t n_q : {1u, 3u, 4u, 7u, 9u}) {
        CAPTURE(dim);
        CAPTURE(n_q);
        const size_t n_rows = 5, stride = dim + 3, dot_stride = n_rows + 2;
        const auto q = test::random_floats(n_q * dim, 1.0f, 1),
                   rows = test::random_floats(n_rows * stride, 1.0f, 2);
        std::vector<double> dots(n_q * dot_stride, -7.0);
        kernels::dots_f64(q.data(), n_q, rows.data(), n_rows, stride, dim, dots.data(), dot_stride);
        for (size_t j = 0; j < n_q; ++j)
          for (size_t i = 0; i < dot_stride; ++i) {
            long double want = i < n_rows ? 0.0L : -7.0L, size = 0;
            for (size_t d = 0; i < n_rows && d < dim; ++d) {
              const long double product = static_cast<long double>(q[j * dim + d]) *
                                          static_cast<long double>(rows[i * stride + d]);
              want += product;
              size += std::abs(product);
            }
            const double got = dots[j * dot_stride + i];
            CHECK(std::abs(static_cast<double>(static_cast<long double>(got) - want)) <=
                  1e-15 * static_cast<double>(size));
          }
      }
  });
}

TEST_CASE("softmax_weights_f64 is exp of the distance to the largest") {
  test::for_each_simd_target([] {
    for (const size_t n : {1u, 2u, 7u, 8u, 9u, 100u, 1001u})
      for (const double spread : {1.0, 30.0, 400.0}) {
        CAPTURE(n);
        CAPTURE(spread);
        std::mt19937 random(static_cast<uint32_t>(n));
        std::uniform_real_distribution<double> draw(-spread, spread);
        std::vector<double> x(n);
        for (double& value : x) value = draw(random);
        if (n > 2) x[n / 2] = -kDoubleInf;
        if (n > 2) x[n - 1] = x[0];
        const double high = *std::max_element(x.begin(), x.end());
        long double sum = 0;
        std::vector<double> got = x;
        const double total = kernels::softmax_weights_f64(got.data(), n);
        if (n > 2) CHECK(got[n - 1] == got[0]);
        for (size_t i = 0; i < n; ++i) {
          const double want = std::exp(x[i] - high);
          if (want > 1e-300) CHECK(std::abs(got[i] - want) <= 1e-14 * want);
          if (want <= 1e-300) CHECK(got[i] <= 2e-300);
          sum += static_cast<long double>(want);
        }
        CHECK(std::abs(total - static_cast<double>(sum)) <= 1e-14 * static_cast<double>(sum));
      }
  });
}

TEST_CASE("softmax_weights_f64 of nothing but -inf is 0, and one bad number spoils the sum") {
  test::for_each_simd_target([] {
    for (const size_t n : {0u, 1u, 8u, 19u}) {
      std::vector<double> x(n, -kDoubleInf);
      CHECK(kernels::softmax_weights_f64(x.data(), n) == 0.0);
      CHECK(std::all_of(x.begin(), x.end(), [](double w) { return w == 0.0; }));
    }
    for (const double bad : {kDoubleInf, std::numeric_limits<double>::quiet_NaN()})
      for (const size_t at : {0u, 5u, 18u}) {
        std::vector<double> x(19, 1.0);
        x[at] = bad;
        CHECK(std::isnan(kernels::softmax_weights_f64(x.data(), x.size())));
      }
  });
}

TEST_CASE("add_weighted_rows_f64 adds to what is there") {
  test::for_each_simd_target([] {
    for (const size_t dim : kDims) {
      CAPTURE(dim);
      const size_t n = 13, stride = dim + 2;
      const auto rows = test::random_floats(n * stride, 1.0f, 3);
      std::vector<double> weight(n), sum(dim, 0.5);
      for (size_t i = 0; i < n; ++i) weight[i] = 1.0 / (1.0 + static_cast<double>(i));
      kernels::add_weighted_rows_f64(weight.data(), rows.data(), n, stride, dim, sum.data());
      for (size_t d = 0; d < dim; ++d) {
        double want = 0.5;
        for (size_t i = 0; i < n; ++i) want += weight[i] * double{rows[i * stride + d]};
        CHECK(std::abs(sum[d] - want) <= 1e-14);
      }
    }
  });
}

TEST_SUITE_END();
