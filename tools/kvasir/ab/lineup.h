// Who takes part in an A/B run: dense attention and the arms.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/ab/worker.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

// One of those that answer every sample. `label` is its name in all files of the run.
struct Entrant {
  std::string label;
  std::string base, value;                   // of a swept arm: its name without the value, and that
  std::optional<StrategyConfig> strategy{};  // none: the session's own, dense attention
  std::string failed{};                      // why it takes no part from the start; "": it does
};

// "selector.budget_tokens=256,512": the key and its values. Error(kInput) otherwise.
struct Sweep {
  std::string key;
  std::vector<std::string> values;
};
Sweep parse_sweep(const std::string& text);

// Dense attention, then the arms by name, each once for every value of the sweep; checked before
// the model is opened. Changes `options` as resolve_arms() does. No plugin of an arm that is in
// `failed` (label, why) is made. Error(kInput) when two arms have the same label.
std::vector<Entrant> resolve_lineup(Options& options, const std::vector<std::string>& strategies,
                                    const std::optional<Sweep>& sweep, Worker& worker,
                                    const std::map<std::string, std::string>& failed);

// Adds to the engine, behind its dense attention, those of the lineup that have not failed. Returns
// their strategies' ids by the place in the lineup; 0 for one that has failed, here, too.
std::vector<StrategyId> enter(Engine& engine, Session& session, std::vector<Entrant>& lineup,
                              Worker& worker);

}  // namespace kvasir::tool
