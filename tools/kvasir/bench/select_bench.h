// Decode steps of strategies beside dense ones, at one length of the prompt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/serving/scheduler.h"
#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/bench/select_figures.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/session/shared_prompt.h"

namespace kvasir::tool {

struct SelectRow {
  uint32_t depth = 0;  // tokens of the prompt
  std::string strategy;
  // Per decode step, in ms, each with a median of its own: the parts may not sum up to `step`.
  double step = 0, choose = 0, attend = 0, model = 0, other = 0;
  double spread = 0;      // of `step`: Typical::spread
  double of_dense = 1;    // `step` over that of dense attention
  uint32_t n_faster = 0;  // steps that were faster than the dense one of the same token
  StepFloors floors;
  Engagement decode;  // sums over the steps

  double attended_percent() const;
  bool attends_everything() const;
};

class SelectBench {
 public:
  // Loads the weights. Errors of Session::load(). The session must outlive it.
  SelectBench(Session& session, const std::vector<Arm>& arms, uint32_t max_depth, uint32_t n_steps);

  const MeasuredLimits& limits() const { return limits_; }
  // Reads the prompt, then decodes n_steps tokens under each strategy, all of them fed what dense
  // attention predicts. Their steps take turns, so that what else the machine does hits all alike.
  // Dense attention is the first row. Throws what any strategy throws.
  std::vector<SelectRow> measure(std::span<const TokenId> prompt);

 private:
  // In ms, [steps].
  struct Series {
    std::vector<double> step, choose, attend, model, other;
    void add(const Engagement& before, const Engagement& after);
  };

  std::vector<ReadPrompt> read(std::span<const TokenId> prompt);
  std::vector<Series> decode(const std::vector<ReadPrompt>& prompts, const std::string& label);
  SelectRow row(uint32_t depth, StrategyId strategy, const Series& series) const;

  uint32_t n_steps_;
  Engine& engine_;
  Scheduler scheduler_;
  std::vector<std::string> labels_;  // [strategies], dense first
  MeasuredLimits limits_;
};

}  // namespace kvasir::tool
