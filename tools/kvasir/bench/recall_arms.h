// The strategies of `kvasir bench recall`, made alike in everything but how they choose, and what
// of each may be turned until all attend to as many tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/bench/recall_fit.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

struct RecallSettings {
  uint32_t block_size, sink, window, budget;  // tokens
  uint32_t context;                           // of the prompt: more budget changes nothing
};

class RecallArm {
 public:
  // `name`: strategy file or preset; "/token" behind it makes it choose tokens instead of blocks,
  // "/shared" once for all heads. Its layer 0 is dense, its K and V are f32.
  RecallArm(const Options& options, const std::string& name, const RecallSettings& settings,
            PluginHost& host);

  const std::string& label() const { return label_; }
  // The first is the budget. None: dense attention has nothing to spend a budget on.
  const std::vector<FitKnob>& knobs() const { return knobs_; }
  // As in a strategy file: selector.budget_tokens, selector.1.p.
  const std::string& key(size_t knob) const { return turns_[knob].name; }
  StrategyConfig strategy(const std::vector<double>& values) const;

 private:
  struct Turn {
    size_t selector;  // of the chain
    std::string key, name;
    bool is_whole;
  };
  void resolve(const Options& options, const RecallSettings& settings, PluginHost& host);
  void add_budget(const RecallSettings& settings, PluginHost& host);
  void add_shares(PluginHost& host);
  void add(size_t selector, const std::string& key, bool is_whole, const FitKnob& knob);

  std::string label_;
  StrategyConfig strategy_;
  std::vector<FitKnob> knobs_;
  std::vector<Turn> turns_;  // of the knobs
};

}  // namespace kvasir::tool
