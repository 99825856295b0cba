// See masked.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/masked.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/kvasir/cli/text.h"

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
  PluginSection selector;
  selector.kind = Kind::kSelector;
  selector.plugin.value = "kvasir.streaming";
  choose_otherwise(out, selector);
  return out;
}

void choose_otherwise(StrategyConfig& strategy, const PluginSection& selector) {
  strategy.selectors = {selector};
  strategy.representative.reset();
  strategy.cache.foresee = {};
}

std::string configuration_of(const StrategyConfig& strategy) {
  StrategyConfig nameless = strategy;
  nameless.name.clear();
  std::string out;
  for (const ExplainLine& line : explain(nameless)) out += line.key + "=" + line.value + "\n";
  return out;
}

Masks add_masks(Engine& engine, Session& session,
                const std::vector<const StrategyConfig*>& strategies) {
  Masks out;
  out.n_strategies = static_cast<uint32_t>(strategies.size() + 1);
  out.of.assign(out.n_strategies, 0);
  std::map<std::string, StrategyId> known;
  for (StrategyId s = 1; s <= strategies.size(); ++s) {
    if (!can_be_masked(engine.pipeline(s))) continue;
    const StrategyConfig mask = masked(*strategies[s - 1]);
    const auto [at, is_new] = known.emplace(configuration_of(mask), 0);
    if (is_new) {
      at->second = engine.add_strategy(session.pipeline(mask));
      ++out.n_strategies;
    }
    out.of[s] = at->second;
  }
  return out;
}

void PairedLoss::add(double of_strategy, double of_mask) {
  ++n_;
  of_mask_ += of_mask;
  gain_ += of_mask - of_strategy;
  squares_ += (of_mask - of_strategy) * (of_mask - of_strategy);
}

double PairedLoss::mean_of_mask() const { return n_ ? of_mask_ / static_cast<double>(n_) : 0; }

double PairedLoss::gain() const { return n_ ? gain_ / static_cast<double>(n_) : 0; }

double PairedLoss::error() const {
  if (n_ < 2) return 0;
  const auto n = static_cast<double>(n_);
  return std::sqrt(std::max(squares_ / n - gain() * gain(), 0.0) / (n - 1));
}

bool PairedLoss::choice_matters() const {
  return n_ > 1 && std::abs(gain()) > std::max(kLeastGain, 1.96 * error());
}

std::string kept_by_mask_text(const std::vector<std::string>& strategies, const std::string& what) {
  return "did not engage: " + join(strategies, ", ") +
         ": its sparse layers hold none of the retrieval, for nine tenths of " + what +
         " are kept with nothing chosen there";
}

}  // namespace kvasir::tool
