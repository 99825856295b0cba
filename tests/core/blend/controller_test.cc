// What the controller chooses from made-up times, against an oracle that tries every ratio.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/controller.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace {
using namespace kvasir;

BlendDecision decided(double load, double compute, std::vector<TierTime> tiers = {}) {
  return decide({load, compute, std::move(tiers)}, {});
}

// Computing a share of every layer while the next one loads takes the longer of both per layer: the
// largest share, in steps of a thousandth, that is not slower than computing nothing.
double largest_free_ratio(double load, double compute) {
  const auto per_layer = [&](double ratio) { return std::max(load, ratio * compute); };
  double best = 0;
  for (int i = 0; i <= 1000; ++i)
    if (per_layer(i / 1000.0) <= per_layer(0)) best = i / 1000.0;
  return best;
}

// Whether a layer that is loaded from there while `ratio` of one is computed is waited for.
bool is_waited_for(const TierTime& tier, double compute, double ratio) {
  return std::max(tier.load_layer, ratio * compute) > ratio * compute;
}

}  // namespace

TEST_SUITE_BEGIN("core/blend/controller");

TEST_CASE("the ratio is what loading hides, at least the floor, at most all") {
  const BlendDecision hidden = decided(0.016, 0.020);
  CHECK(hidden.ratio == doctest::Approx(0.8));
  CHECK(!hidden.tier);
  CHECK(hidden.reason ==
        "a layer of the chunks loads in 16 ms and is computed in 20 ms: loading hides 80 %");
  const BlendDecision floor = decided(0.001, 0.020);
  CHECK(floor.ratio == 0.15);
  CHECK(floor.reason.find("hides 5 %, min_ratio asks for 15 %") != std::string::npos);
  CHECK(decided(0.003001, 0.020).ratio == doctest::Approx(0.15005));
  CHECK(decided(0.021, 0.020).ratio == 1);
  CHECK(decided(0.021, 0.020).reason.find("as fast as loading") != std::string::npos);
  const BlendDecision unknown = decided(0.001, 0, {{ChunkTier::kMemory, 0.001}});
  CHECK(unknown.ratio == 0.15);
  CHECK(!unknown.tier);
  CHECK(unknown.reason.find("is not known") != std::string::npos);
}

TEST_CASE("for any times the ratio is the largest that costs nothing, or the floor") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-5, 0);
  for (int i = 0; i < 200; ++i) {
    const double load = std::pow(10, exponent(random)), compute = std::pow(10, exponent(random));
    CAPTURE(load);
    CAPTURE(compute);
    const double want = std::max(0.15, largest_free_ratio(load, compute));
    CHECK(std::abs(decided(load, compute).ratio - want) < 0.0011);
  }
}

TEST_CASE("the tier is the cheapest that is not waited for, or else the fastest") {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> exponent(-4, 0);
  int n_hidden = 0;
  for (int i = 0; i < 200; ++i) {
    const double compute = std::pow(10, exponent(random));
    std::vector<TierTime> tiers;
    for (const ChunkTier tier : {ChunkTier::kStore, ChunkTier::kFile, ChunkTier::kMemory})
      if (random() % 4 != 0) tiers.push_back({tier, std::pow(10, exponent(random))});
    const BlendDecision got = decided(0.001, compute, tiers);
    if (tiers.empty()) {
      CHECK(!got.tier);
      continue;
    }
    REQUIRE(got.tier);
    const TierTime* want = nullptr;
    for (auto tier = tiers.rbegin(); tier != tiers.rend(); ++tier)
      if (!is_waited_for(*tier, compute, got.ratio)) want = &*tier;  // ends with the cheapest
    const bool is_hidden = want != nullptr;
    n_hidden += is_hidden;
    for (const TierTime& tier : tiers)
      if (!is_hidden && (!want || tier.load_layer < want->load_layer)) want = &tier;
    CHECK(*got.tier == want->tier);
    CHECK(got.reason.find(std::string(name(want->tier)) + " is the " +
                          (is_hidden ? "cheapest" : "fastest")) != std::string::npos);
  }
  CHECK(n_hidden > 50);
  CHECK(n_hidden < 180);
}

TEST_CASE("few tokens are not blended") {
  BlendConfig config;
  CHECK(too_few_to_blend(255, config).find("min_tokens = 256") != std::string::npos);
  CHECK(too_few_to_blend(256, config).empty());
  config.min_tokens = 1000;
  CHECK(!too_few_to_blend(999, config).empty());
  config.min_ratio = 0.3;
  CHECK(decide({0.001, 0.02, {}}, config).ratio == 0.3);
}

TEST_CASE("a speed is the mean of what was measured") {
  LayerSpeed speed;
  CHECK(!speed.is_known());
  CHECK(speed.seconds(100) == 0);
  speed.add(100, 1.0);
  speed.add(300, 1.0);
  CHECK(speed.seconds(200) == doctest::Approx(1.0));
}

TEST_SUITE_END();
