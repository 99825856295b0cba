// Who takes part in an A/B run: dense attention, the arms, and for each arm the rungs of its
// ladder: exact top-k and a random choice at the arm's unit, scope and budget, and the arm masked:
// where it would choose nothing is attended beside the first tokens and the window.
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

enum class Role { kDense, kArm, kOracle, kRandom, kMasked };
const char* name(Role role);  // "dense", "arm", "oracle", "random", "masked"

// What oracle and random of an arm choose.
struct Ladder {
  uint64_t budget_tokens = 0;
  bool by_token = false, shared = false;  // shared: one choice for all kv heads
};

// One of those that answer every sample. `label` is its name in all files of the run.
struct Entrant {
  std::string label;
  Role role = Role::kArm;
  std::string base, value;                   // of a swept arm: its name without the value, and that
  std::optional<StrategyConfig> strategy{};  // none: the session's own, dense attention
  std::optional<Ladder> ladder{};  // of an arm; none: it states no budget, or rungs cannot copy it
  bool is_masked = false;          // of an arm: one of its rungs is masked
  std::string oracle{}, random{}, masked{};  // of an arm: labels of its rungs; empty: it has none
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

// What an arm has on its ladder.
struct DeclaredRungs {
  std::optional<Ladder> ladder{};
  bool is_masked = false;
};

// Adds to the engine, behind its dense attention, those of the lineup that have not failed, then
// (unless not wanted) the rungs of the arms, to engine and lineup; rungs that would be equal are
// one. Returns the strategies' ids by the place in the lineup; 0 for one that has failed, here,
// too. A hybrid and a strategy over keys before RoPE have no rungs, a chain is masked alone, and
// one that chooses nothing is its own mask.
//   rungs: of arms that have failed, as a run that is gone on with has declared them (by label)
//   failed: rungs among them (label, why) take no part
std::vector<StrategyId> enter(Engine& engine, Session& session, std::vector<Entrant>& lineup,
                              Worker& worker, bool with_rungs,
                              const std::map<std::string, DeclaredRungs>& rungs,
                              const std::map<std::string, std::string>& failed);

// Adds all of them again, with plugins of their own, for another sample that is answered at the
// same time. Throws what making them throws.
std::vector<StrategyId> enter_again(Engine& engine, Session& session,
                                    const std::vector<Entrant>& lineup, Worker& worker);

}  // namespace kvasir::tool
