// The strategies of `kvasir bench recall`. They differ in how they choose and in nothing else. Each
// has settings that the search may change until all attend to the same number of tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/recall/recall_fit.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

struct RecallSettings {
  uint32_t block_size, sink, window, budget;  // tokens
  uint32_t context;  // tokens of the prompt: a larger budget changes nothing
};

class RecallArm {
 public:
  // `name`: strategy file or preset. With the suffix "/token" it chooses tokens instead of blocks,
  // with "/shared" it makes one choice for all heads. Layer 0 is dense; K and V are f32.
  RecallArm(const Options& options, const std::string& name, const RecallSettings& settings,
            PluginHost& host);

  const std::string& label() const { return label_; }
  // The first is the budget. Dense attention has none: it does not choose.
  const std::vector<FitKnob>& knobs() const { return knobs_; }
  // As in a strategy file: selector.budget_tokens, selector.1.p.
  const std::string& key(size_t knob) const { return settings_[knob].name; }
  StrategyConfig strategy(const std::vector<double>& values) const;

 private:
  struct Setting {
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
  std::vector<Setting> settings_;  // of the knobs
};

}  // namespace kvasir::tool
