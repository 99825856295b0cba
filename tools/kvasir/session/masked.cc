// See masked.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/masked.h"

namespace kvasir::tool {

bool can_be_masked(const Pipeline& pipeline) {
  const Selector& selector = *pipeline.selectors.back();
  const SelectorLimits& limits = selector.limits();
  const bool chooses = selector.has_select() || limits.plan_at != 0;
  return chooses && (limits.expected_units != 0 || limits.max_units != 0) &&
         !pipeline.strategy.is_hybrid() &&
         pipeline.strategy.cache.positions.value == Positions::kTrue;
}

StrategyConfig masked(const StrategyConfig& strategy) {
  StrategyConfig out = strategy;
  out.name = "masked of " + strategy.name;
  out.representative.reset();
  PluginSection selector;
  selector.kind = Kind::kSelector;
  selector.plugin.value = "kvasir.streaming";
  out.selectors = {selector};
  return out;
}

std::string configuration_of(const StrategyConfig& strategy) {
  StrategyConfig nameless = strategy;
  nameless.name.clear();
  std::string out;
  for (const ExplainLine& line : explain(nameless)) out += line.key + "=" + line.value + "\n";
  return out;
}

}  // namespace kvasir::tool
