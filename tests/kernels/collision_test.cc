// Weights of drawn tokens against their definition in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/collision.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;

double log_weight(double cosine, uint32_t n_bits, uint32_t n_tables, double floor) {
  const double c = std::min(1.0, std::max(-1.0, cosine));
  const double p = std::pow(1.0 - std::acos(c) / std::acos(-1.0), n_bits);
  const double u =
      1.0 - std::pow(1.0 - p, n_tables) - n_tables * p * std::pow(1.0 - p, n_tables - 1.0);
  return -std::log(u + floor);
}

// The probability for a cosine, in f32.
double probability(float cosine, uint32_t n_bits, uint32_t n_tables) {
  const float norm = 1.0f;
  kernels::collision_log_weights({n_bits, n_tables, 1e-300}, 0.0, 1.0, &norm, 1, &cosine);
  return std::exp(-double{cosine});
}

}  // namespace

TEST_SUITE("kernels/collision") {
  TEST_CASE("a weight is -ln of the probability, for any length, K and L") {
    test::for_each_simd_target([] {
      for (const size_t n : {1, 2, 3, 7, 8, 9, 64, 65}) {
        for (const auto& [n_bits, n_tables] :
             {std::pair<uint32_t, uint32_t>{1, 2}, {10, 150}, {7, 33}}) {
          CAPTURE(n);
          CAPTURE(n_bits);
          const auto dot = test::random_floats(n, 4.0f, 31);
          auto norm = test::random_floats(n, 2.0f, 32);
          for (float& x : norm) x = std::fabs(x) + 0.5f;
          auto weight = dot;
          weight.push_back(42.0f);
          const double offset = 0.25, length = 1.75, floor = 1e-4;
          kernels::collision_log_weights({n_bits, n_tables, floor}, offset, length, norm.data(), n,
                                         weight.data());
          CHECK(weight[n] == 42.0f);
          for (size_t i = 0; i < n; ++i) {
            const double cosine = (double{dot[i]} - offset) / (length * double{norm[i]});
            const double want = log_weight(cosine, n_bits, n_tables, floor);
            CHECK(std::fabs(double{weight[i]} - want) <= 2e-7 * std::fabs(want) + 1e-11);
          }
        }
      }
    });
  }

  TEST_CASE("the probability is the published table's, and ends are kept") {
    test::for_each_simd_target([] {
      const struct {
        uint32_t k, l;
        double at[4];  // cosine 0, 0.2, 0.4, 0.6
      } published[] = {{8, 75, {.035, .180, .565, .947}},
                       {9, 120, {.023, .153, .569, .967}},
                       {10, 150, {.0097, .087, .443, .943}},
                       {11, 300, {.0097, .106, .565, .988}}};
      for (const auto& line : published) {
        for (int i = 0; i < 4; ++i) {
          const double u = probability(0.2f * static_cast<float>(i), line.k, line.l);
          CHECK(u == doctest::Approx(line.at[i]).epsilon(0.011));
        }
      }
      CHECK(probability(1.5f, 10, 150) == 1.0);
      CHECK(probability(1.0f, 10, 150) == 1.0);
      CHECK(probability(-1.5f, 10, 150) < 1e-30);
      const float nan = std::numeric_limits<float>::quiet_NaN();
      CHECK(probability(nan, 10, 150) == probability(0.0f, 10, 150));
      float weight = 0.0f;
      const float norm = 0.0f;
      kernels::collision_log_weights({10, 150, 0.0}, 0.0, 1.0, &norm, 1, &weight);
      CHECK(std::exp(-double{weight}) == doctest::Approx(probability(0.0f, 10, 150)));
    });
  }
}
