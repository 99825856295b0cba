// Eigenvectors: they rebuild the matrix, are orthonormal and sorted, also where values coincide.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/symmetric_eigen.h"

#include "tests/kernels/rows.h"
#include "tests/support/larger_or_nan.h"

namespace {
using namespace kvasir;

void check(const std::vector<double>& a, size_t n) {
  auto work = a;
  std::vector<double> value(n), vector(n * n);
  kernels::symmetric_eigen(work.data(), n, value.data(), vector.data());
  double largest = 0;
  for (const double x : a) largest = std::max(largest, std::abs(x));
  double worst_a = 0, worst_dot = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i > 0) CHECK(value[i] <= value[i - 1]);
    for (size_t j = 0; j < n; ++j) {
      double rebuilt = 0, dot = 0;
      for (size_t k = 0; k < n; ++k) {
        rebuilt += value[k] * vector[k * n + i] * vector[k * n + j];
        dot += vector[i * n + k] * vector[j * n + k];
      }
      worst_a = test::larger_or_nan(worst_a, std::abs(rebuilt - a[i * n + j]));
      worst_dot = test::larger_or_nan(worst_dot, std::abs(dot - (i == j ? 1.0 : 0.0)));
    }
  }
  CHECK(worst_a <= 1e-13 * static_cast<double>(n) * largest);
  CHECK(worst_dot <= 1e-13 * static_cast<double>(n));
}

}  // namespace

TEST_SUITE("kernels/symmetric_eigen") {
  TEST_CASE("vectors are orthonormal and rebuild the matrix") {
    for (const size_t n : {1u, 2u, 5u, 64u}) {
      for (const size_t rank : {n, (n + 1) / 2}) {  // Q^T Q of fewer rows than columns as well
        CAPTURE(n);
        const auto q = test::random_floats(rank * n, 1.0f, 70 + static_cast<uint32_t>(n));
        std::vector<double> a(n * n);
        for (size_t r = 0; r < rank; ++r)
          for (size_t i = 0; i < n; ++i)
            for (size_t j = 0; j < n; ++j)
              a[i * n + j] += double{q[r * n + i]} * double{q[r * n + j]};
        check(a, n);
      }
    }
  }

  TEST_CASE("zeros, a diagonal, and equal values") {
    check(std::vector<double>(9), 3);
    check({1, 0, 0, 0, 7, 0, 0, 0, 3}, 3);
    check({2, 1, 1, 1, 2, 1, 1, 1, 2}, 3);  // 4, 1, 1
  }
}
