// What the controller chooses from measured times.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/controller.h"

#include <doctest/doctest.h>

namespace {
using namespace kvasir;

BlendDecision decided(double load, double compute, uint32_t n_tokens = 4096) {
  return decide(n_tokens, {load, compute}, {});
}

}  // namespace

TEST_SUITE_BEGIN("core/blend/controller");

TEST_CASE("the ratio is what loading hides, at least the floor, at most all") {
  const BlendDecision hidden = decided(0.016, 0.020);
  CHECK(hidden.mode == BlendMode::kRatio);
  CHECK(hidden.ratio == doctest::Approx(0.8));
  CHECK(hidden.reason ==
        "a layer of the chunks loads in 16 ms and is computed in 20 ms: loading hides 80 %");
  const BlendDecision floor = decided(0.001, 0.020);
  CHECK(floor.mode == BlendMode::kRatio);
  CHECK(floor.ratio == 0.15);
  CHECK(floor.reason.find("hides 5 %, min_ratio asks for 15 %") != std::string::npos);
  CHECK(decided(0.003001, 0.020).ratio == doctest::Approx(0.15005));
  CHECK(decided(0.021, 0.020).mode == BlendMode::kFull);
  CHECK(decided(0.021, 0.020).reason.find("as fast as loading") != std::string::npos);
  const BlendDecision unknown = decided(0.001, 0);
  CHECK(unknown.mode == BlendMode::kRatio);
  CHECK(unknown.ratio == 0.15);
  CHECK(unknown.reason.find("is not known") != std::string::npos);
}

TEST_CASE("short prompts are not blended") {
  CHECK(decided(0.001, 0.020, 255).mode == BlendMode::kFull);
  CHECK(decided(0.001, 0.020, 256).mode == BlendMode::kRatio);
  BlendConfig config;
  config.min_tokens = 1000;
  config.min_ratio = 0.3;
  CHECK(decide(999, {0.001, 0.02}, config).mode == BlendMode::kFull);
  CHECK(decide(1000, {0.001, 0.02}, config).ratio == 0.3);
}

TEST_CASE("a speed is the mean of what was measured") {
  LayerSpeed speed;
  CHECK(!speed.is_known());
  CHECK(speed.seconds(100) == 0);
  speed.add(100, 1.0);
  speed.add(300, 1.0);
  CHECK(speed.seconds(200) == doctest::Approx(1.0));
}
