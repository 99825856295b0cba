// One strategy over a RecallWorld, run until it attends to the wanted number of tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/step/given.h"
#include "tools/kvasir/recall/recall_arms.h"
#include "tools/kvasir/recall/recall_meter.h"

namespace kvasir::tool {

// What each kv head attended to in every decoded step, positions ascending.
class RecallChoices {
 public:
  RecallChoices() = default;
  explicit RecallChoices(const RecallShape& shape)
      : shape_(shape), tokens_(uint64_t{shape.n_layers} * shape.steps * shape.n_kv_heads) {}
  std::vector<uint32_t>& at(uint32_t layer, uint32_t step, uint32_t kv_head) {
    return tokens_[place(layer, step, kv_head)];
  }
  const std::vector<uint32_t>& at(uint32_t layer, uint32_t step, uint32_t kv_head) const {
    return tokens_[place(layer, step, kv_head)];
  }

 private:
  uint64_t place(uint32_t layer, uint32_t step, uint32_t kv_head) const {
    return (uint64_t{layer} * shape_.steps + step) * shape_.n_kv_heads + kv_head;
  }
  RecallShape shape_;
  std::vector<std::vector<uint32_t>> tokens_;
};

struct RecallResult {
  std::string label;
  RecallMeter::Choice choice;
  RecallFigures figures;
  std::vector<RecallFigures> layers;  // of layer 1, 2, ... of the world
  uint64_t kv_bytes = 0, fallbacks = 0;
  // The budget and the other settings that were changed, under their names in a strategy file.
  std::vector<std::pair<std::string, double>> settings;
  double tolerance = 0;
  bool at_target = false;
  std::string note;  // what was changed, or why no change helps; empty when none was needed
  size_t n_runs = 0;
  RecallChoices choices;  // where they are kept
};

class RecallBench {
 public:
  // `budget`: tokens beside sink and window. `seed`: of plugins that draw. `remedy`: what makes it
  // fit where memory is short. What is referred to must outlive this.
  RecallBench(const RecallWorld& world, uint32_t budget, uint64_t seed, PluginHost& host,
              std::string remedy);
  void keep_choices() { keeps_choices_ = true; }

  // Tokens per kv head and step of a strategy that attends to its budget, sink and window.
  double target() const;
  // The largest accepted distance from the target, in tokens: a unit, or 2 % where that is more.
  double tolerance(const RecallMeter::Choice& choice) const;
  // Calls on_run after each run. Throws what the strategy throws with its own settings.
  RecallResult measure(const RecallArm& arm, const std::function<void()>& on_run) const;
  // One run with the strategy's own settings: figures, layers, bytes. between() is called between
  // its steps; what it throws ends the run.
  RecallResult run(const StrategyConfig& strategy, const std::function<void()>& between) const;

 private:
  GivenProjections projections() const;
  std::string note(const RecallArm& arm, const Fit& found, double attended) const;

  const RecallWorld& world_;
  const RecallShape& shape_;
  uint32_t budget_;
  uint64_t seed_;
  PluginHost& host_;
  std::string remedy_;
  bool keeps_choices_ = false;
  RecallTruth truth_;
};

}  // namespace kvasir::tool
