// Deviations, choices and rank correlations against formulas written out.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/deviation.h"

#include <cmath>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
}  // namespace

TEST_SUITE_BEGIN("core/blend/deviation");

TEST_CASE("each half is a distance in units of the mean size of its fresh rows") {
  // Two tokens; K of two numbers, V of one.
  const float k[] = {3, 4, 0, 5}, old_k[] = {3, 4, 3, 1};
  const float v[] = {1, 7}, old_v[] = {-1, 7};
  const auto got = kv_deviation({k, v}, {old_k, old_v}, 2, 2, 1);
  CHECK(got[0] == doctest::Approx(2 / std::sqrt((1.0 + 49.0) / 2)));
  CHECK(got[1] == doctest::Approx(5 / std::sqrt((25.0 + 25.0) / 2)));
  const float thousand[] = {1000, 7000}, old_thousand[] = {-1000, 7000};
  const auto scaled = kv_deviation({k, thousand}, {old_k, old_thousand}, 2, 2, 1);
  CHECK(scaled[0] == doctest::Approx(got[0]));
  const float zero[] = {0, 0}, one[] = {0, 1};
  CHECK(kv_deviation({k, zero}, {k, one}, 2, 2, 1) == std::vector<double>{0, 1});
}

TEST_CASE("the highest are kept in the order of positions, equal ones from the front") {
  const std::vector<uint32_t> positions = {4, 6, 9, 11, 12};
  const std::vector<double> scores = {1, 3, 2, 3, 0};
  CHECK(keep_highest(positions, scores, 1) == std::vector<uint32_t>{6});
  CHECK(keep_highest(positions, scores, 3) == std::vector<uint32_t>{6, 9, 11});
  CHECK(keep_highest(positions, scores, 9) == positions);
  CHECK(keep_highest(positions, std::vector<double>(5, 1.0), 2) == std::vector<uint32_t>{4, 6});
  CHECK(keep_highest(positions, scores, 0).empty());
}

TEST_CASE("rank correlation is 1 for any rising function, -1 for a falling one") {
  std::vector<double> x, rising, falling;
  for (int i = 0; i < 20; ++i) {
    x.push_back((i * 7) % 20);
    rising.push_back(std::exp(x.back() / 3));
    falling.push_back(-x.back() * x.back() * x.back());
  }
  CHECK(rank_correlation(x, rising) == doctest::Approx(1));
  CHECK(rank_correlation(x, falling) == doctest::Approx(-1));
  CHECK(rank_correlation(x, std::vector<double>(20, 2.0)) == 0);
  // By hand: ranks 0, 1.5, 1.5, 3 against 1, 0, 2, 3.
  const std::vector<double> tied = {1, 5, 5, 9}, other = {4, 2, 6, 7};
  CHECK(rank_correlation(tied, other) == doctest::Approx(3.0 / std::sqrt(4.5 * 5.0)));
}
