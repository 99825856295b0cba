// The kernel that measures a machine's arithmetic does the arithmetic it is counted for.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/multiply_add.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/support/simd.h"

TEST_SUITE_BEGIN("kernels/multiply_add");

TEST_CASE("every chain goes through every round, on every SIMD target") {
  using namespace kvasir;
  constexpr float kFactor = -0.97f, kSummand = 0.3f;
  test::for_each_simd_target([] {
    for (const size_t n_rounds : {0, 1, 2, 7, 100}) {
      CAPTURE(n_rounds);
      std::vector<float> x(kernels::kMultiplyAddChains);
      std::iota(x.begin(), x.end(), -50.3f);
      std::vector<double> expected(x.begin(), x.end());
      for (double& value : expected)
        for (size_t round = 0; round < n_rounds; ++round)
          value = value * double{kFactor} + double{kSummand};
      kernels::multiply_add(kFactor, kSummand, n_rounds, x.data());
      for (size_t i = 0; i < x.size(); ++i) {
        CAPTURE(i);
        // Each round rounds once, or twice where the target cannot fuse, and shrinks what the
        // rounds before it left: 100 times a last bit bounds them all.
        CHECK(x[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      }
    }
  });
}

TEST_SUITE_END();
