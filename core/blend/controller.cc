// See controller.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/controller.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace kvasir {
namespace {

std::string number(double value, const char* unit) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3g%s", value, unit);
  return text.data();
}

}  // namespace

BlendDecision decide(uint32_t n_tokens, const BlendTimes& times, const BlendConfig& config) {
  if (n_tokens < config.min_tokens)
    return {BlendMode::kFull, 1.0,
            std::to_string(n_tokens) + " tokens of chunks are fewer than min_tokens = " +
                std::to_string(config.min_tokens) + ": all are computed"};
  if (!(times.compute_layer > 0))
    return {BlendMode::kRatio, config.min_ratio,
            "no chunk was computed whole, so the time of that is not known: min_ratio"};
  const std::string measured = "a layer of the chunks loads in " +
                               number(1e3 * times.load_layer, " ms") + " and is computed in " +
                               number(1e3 * times.compute_layer, " ms");
  if (times.load_layer >= times.compute_layer)
    return {BlendMode::kFull, 1.0, measured + ": computing all of it is as fast as loading it"};
  const double hidden = times.load_layer / times.compute_layer;
  const std::string hides = measured + ": loading hides " + number(100 * hidden, " %");
  if (hidden < config.min_ratio)
    return {BlendMode::kRatio, config.min_ratio,
            hides + ", min_ratio asks for " + number(100 * config.min_ratio, " %")};
  return {BlendMode::kRatio, hidden, hides};
}

}  // namespace kvasir
