// The schedule of gradual filtering, and whom it keeps.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/narrowing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

BlendConfig config_of(double ratio, double narrowing, uint32_t check_layer) {
  BlendConfig config;
  config.ratio = ratio;
  config.narrowing = narrowing;
  config.check_layer = check_layer;
  return config;
}

}  // namespace

TEST_SUITE_BEGIN("core/blend/narrowing");

TEST_CASE("layers narrow around the ratio, which is their mean") {
  for (const uint32_t n_layers : {2u, 3u, 24u, 33u})
    for (const uint32_t check_layer : {1u, 2u})
      for (const double ratio : {0.05, 0.15, 0.5, 0.9, 1.0})
        for (const double narrowing : {0.0, 0.25, 1.0}) {
          if (check_layer >= n_layers) continue;
          CAPTURE(n_layers);
          CAPTURE(check_layer);
          CAPTURE(ratio);
          CAPTURE(narrowing);
          const auto schedule =
              narrowing_schedule(n_layers, 10000, 10000, config_of(ratio, narrowing, check_layer));
          REQUIRE(schedule.size() == n_layers);
          for (uint32_t layer = 0; layer < check_layer; ++layer) CHECK(schedule[layer] == 10000);
          CHECK(std::is_sorted(schedule.rbegin(), schedule.rend()));
          const double sum = std::accumulate(schedule.begin() + check_layer, schedule.end(), 0.0);
          CHECK(sum / (n_layers - check_layer) == doctest::Approx(ratio * 10000).epsilon(0.002));
          const double first = schedule[check_layer], last = schedule.back();
          if (ratio < 0.6 && n_layers - check_layer > 1)
            CHECK(first / (ratio * 10000) == doctest::Approx(1 + narrowing).epsilon(0.01));
          if (narrowing == 0 || ratio == 1) CHECK(first == last);
        }
}

TEST_CASE("a layer never asks for more than can deviate, nor for nothing") {
  const auto some = narrowing_schedule(5, 1200, 180, config_of(0.15, 0.25, 1));
  CHECK(some == std::vector<uint32_t>{180, 180, 180, 165, 135});
  const auto few = narrowing_schedule(5, 10, 10, config_of(0.01, 0.25, 1));
  CHECK(few == std::vector<uint32_t>{10, 1, 1, 1, 1});
}

TEST_CASE("the oracle keeps the tokens that a full pass names, layer by layer") {
  Narrowing::TrueDeviation truth{10, {{9, 9, 9, 9}, {1, 5, 3, 4}, {8, 1, 7, 2}}};
  Narrowing narrowing(BlendMode::kOracle, {4, 3, 1}, 1, 0, &truth, 1, 1);
  const std::vector<uint32_t> all = {10, 11, 12, 13};
  const auto ask = [&](uint32_t layer, const std::vector<uint32_t>& positions) {
    return narrowing(RecomputedLayer{layer, positions, nullptr, nullptr, nullptr, nullptr});
  };
  CHECK(ask(0, all) == all);
  CHECK(ask(1, all) == std::vector<uint32_t>{11, 12, 13});
  CHECK(ask(2, {11, 12, 13}) == std::vector<uint32_t>{12});
  CHECK(narrowing.kept() == std::vector<uint32_t>{4, 3, 1});
}

TEST_CASE("random draws are nested, spread out, and of the seed alone") {
  const std::vector<uint32_t> all = up_to(2000);
  const auto draw = [&](uint64_t seed, uint32_t n_first, uint32_t n_second) {
    Narrowing narrowing(BlendMode::kRandom, {n_first, n_second}, 0, seed, nullptr, 1, 1);
    const auto first = narrowing({0, all, nullptr, nullptr, nullptr, nullptr});
    const auto second = narrowing({1, first, nullptr, nullptr, nullptr, nullptr});
    CHECK(std::includes(first.begin(), first.end(), second.begin(), second.end()));
    return second;
  };
  const auto one = draw(1, 600, 400);
  CHECK(one.size() == 400);
  CHECK(one == draw(1, 900, 400));
  CHECK(one != draw(2, 600, 400));
  // 400 of 2000: each half gets 200 on average, with a standard deviation of 9.
  const auto in_front = std::count_if(one.begin(), one.end(), [](uint32_t p) { return p < 1000; });
  CHECK(in_front > 155);
  CHECK(in_front < 245);
}
