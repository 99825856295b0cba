// See lineup.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/lineup.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/session/masked.h"

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

DeclaredRungs rungs_of(const Pipeline& pipeline) {
  DeclaredRungs out;
  out.is_masked = can_be_masked(pipeline);
  if (!out.is_masked || pipeline.selectors.size() > 1) return out;
  const StrategyConfig& strategy = pipeline.strategy;
  const SelectorLimits& limits = pipeline.selectors.back()->limits();
  const uint64_t units = limits.expected_units ? limits.expected_units : limits.max_units;
  Ladder& ladder = out.ladder.emplace();
  ladder.by_token = limits.unit == KVASIR_UNIT_TOKEN;
  ladder.budget_tokens = units * (ladder.by_token ? 1 : strategy.cache.block_size.value);
  ladder.shared = limits.scope == KVASIR_SCOPE_SEQUENCE ||
                  strategy.cache.head_select_mode.value == HeadSelectMode::kShared;
  return out;
}

Entrant rung_of(const Entrant& arm, Role role) {
  Entrant out;
  out.label = std::string(name(role)) + " of " + arm.label;
  out.role = role;
  if (role == Role::kMasked) {
    out.strategy = masked(*arm.strategy);
    return out;
  }
  out.strategy = arm.strategy;
  StrategyConfig& strategy = *out.strategy;
  strategy.name = out.label;
  PluginSection selector;
  selector.kind = Kind::kSelector;
  selector.plugin.value = role == Role::kOracle ? "kvasir.oracle" : "kvasir.random";
  selector.options = {{"budget_tokens", static_cast<int64_t>(arm.ladder->budget_tokens), {}},
                      {"unit", std::string(arm.ladder->by_token ? "token" : "block"), {}}};
  choose_otherwise(strategy, selector);
  strategy.cache.head_select_mode.value =
      arm.ladder->shared ? HeadSelectMode::kShared : HeadSelectMode::kSeparate;
  return out;
}

void add_rungs(std::vector<Entrant>& lineup) {
  std::map<std::string, std::string> known;  // label of a rung by its configuration
  const size_t n_arms = lineup.size();
  const auto add = [&](size_t arm, Role role) {
    Entrant rung = rung_of(lineup[arm], role);
    const auto [label, is_new] = known.emplace(configuration_of(*rung.strategy), rung.label);
    if (is_new) lineup.push_back(std::move(rung));
    return label->second;
  };
  for (size_t i = 1; i < n_arms; ++i) {
    if (lineup[i].ladder) {
      lineup[i].oracle = add(i, Role::kOracle);
      lineup[i].random = add(i, Role::kRandom);
    }
    if (lineup[i].is_masked) lineup[i].masked = add(i, Role::kMasked);
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
    case Role::kMasked:
      return "masked";
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
    options.set = with.set;  // of dense attention, which is not swept
    if (sweep) std::erase(options.set, sweep->key + "=" + value);
  }
  std::vector<const StrategyConfig*> all;
  for (size_t i = 1; i < lineup.size(); ++i) all.push_back(&*lineup[i].strategy);
  fit_control(options, all);
  return lineup;
}

std::vector<StrategyId> enter(Engine& engine, Session& session, std::vector<Entrant>& lineup,
                              Worker& worker, bool with_rungs,
                              const std::map<std::string, DeclaredRungs>& rungs,
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
    DeclaredRungs of_arm;
    if (arm.failed.empty())
      of_arm = rungs_of(engine.pipeline(ids[i]));
    else if (const auto declared = rungs.find(arm.label); declared != rungs.end())
      of_arm = declared->second;
    arm.ladder = of_arm.ladder;
    arm.is_masked = of_arm.is_masked;
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

std::vector<StrategyId> enter_again(Engine& engine, Session& session,
                                    const std::vector<Entrant>& lineup, Worker& worker) {
  std::vector<StrategyId> ids;
  for (const Entrant& entrant : lineup) {
    ids.push_back(0);
    if (!entrant.failed.empty()) continue;
    worker.works_on(entrant.label);
    ids.back() = engine.add_strategy(
        session.pipeline(entrant.strategy ? *entrant.strategy : session.strategy()));
  }
  worker.works_on("");
  return ids;
}

}  // namespace kvasir::tool
