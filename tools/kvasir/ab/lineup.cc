// See lineup.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/lineup.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {
namespace {

constexpr const char* kDense = "dense";

std::string label_of(const std::string& name, const std::string& value) {
  return value.empty() ? name : name + " " + value;
}

Entrant entrant_of(const Arm& arm, const std::string& value,
                   const std::map<std::string, std::string>& failed) {
  Entrant out;
  out.base = arm.label;
  out.value = value;
  out.label = label_of(arm.label, value);
  out.strategy = arm.strategy;
  out.strategy->name = out.label;
  out.strategy->cache.on_fault.value = OnFault::kFail;  // a fault is no dense answer
  if (const auto why = failed.find(out.label); why != failed.end()) out.failed = why->second;
  return out;
}

std::optional<Ladder> ladder_of(const Pipeline& pipeline) {
  const StrategyConfig& strategy = pipeline.strategy;
  const Selector& selector = *pipeline.selectors.back();
  const SelectorLimits& limits = selector.limits();
  const uint64_t units = limits.expected_units ? limits.expected_units : limits.max_units;
  const bool chooses = selector.has_select() || limits.plan_at != 0;
  if (!chooses || units == 0 || pipeline.selectors.size() > 1 || strategy.is_hybrid() ||
      strategy.cache.positions.value != Positions::kTrue)
    return std::nullopt;
  Ladder out;
  out.by_token = limits.unit == KVASIR_UNIT_TOKEN;
  out.budget_tokens = units * (out.by_token ? 1 : strategy.cache.block_size.value);
  out.shared = limits.scope == KVASIR_SCOPE_SEQUENCE ||
               strategy.cache.head_select_mode.value == HeadSelectMode::kShared;
  return out;
}

Entrant rung_of(const Entrant& arm, Role role) {
  Entrant out;
  out.label = std::string(name(role)) + " of " + arm.label;
  out.role = role;
  out.strategy = arm.strategy;
  StrategyConfig& strategy = *out.strategy;
  strategy.name = out.label;
  strategy.representative.reset();
  PluginSection selector;
  selector.kind = Kind::kSelector;
  selector.plugin.value = role == Role::kOracle ? "kvasir.oracle" : "kvasir.random";
  selector.options = {{"budget_tokens", static_cast<int64_t>(arm.ladder->budget_tokens), {}},
                      {"unit", std::string(arm.ladder->by_token ? "token" : "block"), {}}};
  strategy.selectors = {selector};
  strategy.cache.head_select_mode.value =
      arm.ladder->shared ? HeadSelectMode::kShared : HeadSelectMode::kSeparate;
  return out;
}

// Strategies that configure alike but for their names.
std::string configuration_of(const StrategyConfig& strategy) {
  StrategyConfig nameless = strategy;
  nameless.name.clear();
  std::string out;
  for (const ExplainLine& line : explain(nameless)) out += line.key + "=" + line.value + "\n";
  return out;
}

void add_rungs(std::vector<Entrant>& lineup) {
  std::map<std::string, std::pair<std::string, std::string>> known;  // labels of oracle and random
  const size_t n_arms = lineup.size();
  for (size_t i = 1; i < n_arms; ++i) {
    if (!lineup[i].ladder) continue;
    Entrant oracle = rung_of(lineup[i], Role::kOracle);
    Entrant random = rung_of(lineup[i], Role::kRandom);
    const auto [rungs, is_new] =
        known.emplace(configuration_of(*oracle.strategy), std::pair(oracle.label, random.label));
    lineup[i].oracle = rungs->second.first;
    lineup[i].random = rungs->second.second;
    if (!is_new) continue;
    lineup.push_back(std::move(oracle));
    lineup.push_back(std::move(random));
  }
}

}  // namespace

const char* name(Role role) {
  switch (role) {
    case Role::kDense:
      return "dense";
    case Role::kArm:
      return "arm";
    case Role::kOracle:
      return "oracle";
    case Role::kRandom:
      return "random";
  }
  return "";
}

Sweep parse_sweep(const std::string& text) {
  const size_t sign = text.find('=');
  Sweep sweep;
  if (sign != text.npos && sign != 0) {
    sweep.key = text.substr(0, sign);
    sweep.values = split(text.substr(sign + 1), ',');
  }
  std::vector<std::string> sorted = sweep.values;
  std::sort(sorted.begin(), sorted.end());
  if (sweep.values.empty() || sorted[0].empty() ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw input_error("--sweep " + text +
                      ": expected key=value,value with different values, as in "
                      "selector.budget_tokens=256,512,1024");
  return sweep;
}

std::vector<Entrant> resolve_lineup(Options& options, const std::vector<std::string>& strategies,
                                    const std::optional<Sweep>& sweep, Worker& worker,
                                    const std::map<std::string, std::string>& failed) {
  std::vector<Entrant> lineup(1);
  lineup[0].label = kDense;
  lineup[0].role = Role::kDense;
  const Options given = options;
  const std::vector<std::string> values = sweep ? sweep->values : std::vector<std::string>{""};
  for (const std::string& value : values) {
    Options with = given;
    if (sweep) with.set.push_back(sweep->key + "=" + value);
    const auto makes_plugins = [&](const Arm& arm) {
      worker.works_on(label_of(arm.label, value));
      return !failed.count(label_of(arm.label, value));
    };
    for (const Arm& arm : resolve_arms(with, strategies, makes_plugins)) {
      Entrant entrant = entrant_of(arm, value, failed);
      const auto same = [&](const Entrant& other) { return other.label == entrant.label; };
      if (std::any_of(lineup.begin(), lineup.end(), same))
        throw input_error("two arms are called \"" + entrant.label + "\"" +
                          (entrant.label == kDense
                               ? ", and dense attention always takes part: leave it out"
                               : ": give one of them a file of another name"));
      lineup.push_back(std::move(entrant));
    }
    worker.works_on("");
    options.set = with.set;  // of dense attention: chunk and block size; the sweep's key is not its
    if (sweep) std::erase(options.set, sweep->key + "=" + value);
  }
  return lineup;
}

std::vector<StrategyId> enter(Engine& engine, Session& session, std::vector<Entrant>& lineup,
                              Worker& worker, bool with_rungs,
                              const std::map<std::string, Ladder>& ladders,
                              const std::map<std::string, std::string>& failed) {
  std::vector<StrategyId> ids(1, 0);
  const auto add = [&](Entrant& entrant) {
    StrategyId id = 0;
    if (entrant.failed.empty()) {
      worker.works_on(entrant.label);
      try {
        id = engine.add_strategy(session.pipeline(*entrant.strategy));
      } catch (const Error& e) {  // with this model, since it was made without one before
        entrant.failed = e.what();
        report_progress(entrant.label + " failed and is left out: " + entrant.failed);
      }
      worker.works_on("");
    }
    ids.push_back(id);
  };
  for (size_t i = 1; i < lineup.size(); ++i) {
    Entrant& arm = lineup[i];
    add(arm);
    const auto declared = ladders.find(arm.label);
    if (arm.failed.empty())
      arm.ladder = ladder_of(engine.pipeline(ids[i]));
    else if (declared != ladders.end())
      arm.ladder = declared->second;
  }
  if (with_rungs) {
    const size_t first = lineup.size();
    add_rungs(lineup);
    for (size_t i = first; i < lineup.size(); ++i) {
      if (const auto why = failed.find(lineup[i].label); why != failed.end())
        lineup[i].failed = why->second;
      add(lineup[i]);
    }
  }
  return ids;
}

}  // namespace kvasir::tool
