// See lineup.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/lineup.h"

#include <algorithm>

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

}  // namespace

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
                              Worker& worker) {
  std::vector<StrategyId> ids(lineup.size(), 0);
  for (size_t i = 1; i < lineup.size(); ++i) {
    Entrant& entrant = lineup[i];
    if (!entrant.failed.empty()) continue;
    worker.works_on(entrant.label);
    try {
      ids[i] = engine.add_strategy(session.pipeline(*entrant.strategy));
    } catch (const Error& e) {  // with this model, since it was made without one before
      entrant.failed = e.what();
      report_progress(entrant.label + " failed and is left out: " + entrant.failed);
    }
  }
  worker.works_on("");
  return ids;
}

}  // namespace kvasir::tool
