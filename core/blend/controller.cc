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

std::string percent(double share) { return number(100 * share, " %"); }

void choose_ratio(const BlendTimes& times, const BlendConfig& config, BlendDecision& out) {
  if (!(times.compute_layer > 0)) {
    out.ratio = config.min_ratio;
    out.reason = "the time of computing a layer is not known: min_ratio";
    return;
  }
  const double hidden = times.load_layer / times.compute_layer;
  out.ratio = std::clamp(hidden, config.min_ratio, 1.0);
  out.reason = "a layer of the chunks loads in " + number(1e3 * times.load_layer, " ms") +
               " and is computed in " + number(1e3 * times.compute_layer, " ms");
  if (hidden >= 1)
    out.reason += ": computing all of it is as fast as loading it";
  else
    out.reason += ": loading hides " + percent(hidden);
  if (hidden < config.min_ratio) out.reason += ", min_ratio asks for " + percent(config.min_ratio);
}

void choose_tier(const BlendTimes& times, BlendDecision& out) {
  if (times.tiers.empty() || !(times.compute_layer > 0)) return;
  const double time = out.ratio * times.compute_layer;
  const auto hides = [&](const TierTime& tier) { return tier.load_layer <= time; };
  auto chosen = std::find_if(times.tiers.begin(), times.tiers.end(), hides);
  const bool is_hidden = chosen != times.tiers.end();
  if (!is_hidden)
    chosen = std::min_element(
        times.tiers.begin(), times.tiers.end(),
        [](const TierTime& a, const TierTime& b) { return a.load_layer < b.load_layer; });
  out.tier = chosen->tier;
  out.reason += "; ";
  for (const TierTime& tier : times.tiers)
    out.reason += std::string(name(tier.tier)) + " " + number(1e3 * tier.load_layer, " ms, ");
  out.reason += std::string(name(chosen->tier)) + " is the " +
                (is_hidden ? "cheapest that " + percent(out.ratio) + " of computing hides"
                           : "fastest, and " + percent(out.ratio) + " of computing hides none");
}

}  // namespace

const char* name(ChunkTier tier) {
  constexpr std::array<const char*, kChunkTiers> kNames{"store", "file", "memory"};
  return kNames[static_cast<size_t>(tier)];
}

std::string too_few_to_blend(uint32_t n_tokens, const BlendConfig& config) {
  if (n_tokens >= config.min_tokens) return "";
  return std::to_string(n_tokens) +
         " tokens of chunks are fewer than min_tokens = " + std::to_string(config.min_tokens) +
         ": all are computed";
}

BlendDecision decide(const BlendTimes& times, const BlendConfig& config) {
  BlendDecision out;
  choose_ratio(times, config, out);
  choose_tier(times, out);
  return out;
}

}  // namespace kvasir
