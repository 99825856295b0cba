// Strategies that choose nothing: the control that says whether a choice mattered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plugin/pipeline.h"
#include "core/runtime/engine.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {

// Whether the strategy chooses, and can be run without: not a hybrid, nor one over keys before
// RoPE.
bool can_be_masked(const Pipeline& pipeline);

// The strategy with nothing chosen in its sparse layers, which attend to the first tokens and the
// window alone; nothing is given up. Its dense layers, blocks and storage stay.
StrategyConfig masked(const StrategyConfig& strategy);
// `selector` in place of all that the strategy chooses by; nothing is foreseen.
void choose_otherwise(StrategyConfig& strategy, const PluginSection& selector);

// Strategies that configure alike, but for their names, have the same.
std::string configuration_of(const StrategyConfig& strategy);

struct Masks {
  std::vector<StrategyId> of;  // by strategy: its mask, 0: it has none
  uint32_t n_strategies = 0;   // of the engine: dense attention, the others, and the masks
};
// Adds the masks of an engine's strategies to it, which has dense attention and, in their order,
// these; those that are equal are one.
Masks add_masks(Engine& engine, Session& session,
                const std::vector<const StrategyConfig*>& strategies);

// Of what somebody else has right: answers, or tokens that are predicted.
struct Kept {
  uint64_t n = 0, by_strategy = 0, by_mask = 0;
  void add(bool is_kept, bool is_kept_by_mask) {
    ++n;
    by_strategy += is_kept;
    by_mask += is_kept_by_mask;
  }
  // Both keep nine tenths: that the strategy does is no merit of its choice.
  bool without_choice() const {
    return n > 0 && 10 * by_strategy >= 9 * n && 10 * by_mask >= 9 * n;
  }
};

inline constexpr double kLeastGain = 0.01;  // nats: 1 % of perplexity

// What a strategy and its mask lose at the same tokens: divergence from dense attention, or the
// negative log-likelihood of a text.
class PairedLoss {
 public:
  void add(double of_strategy, double of_mask);
  double mean_of_mask() const;
  double gain() const;   // by the choice: mean of mask - strategy
  double error() const;  // its standard error, tokens taken as independent
  // The gain, in either direction, is above kLeastGain and beyond chance at 5 %.
  bool choice_matters() const;

 private:
  uint64_t n_ = 0;
  double of_mask_ = 0, gain_ = 0, squares_ = 0;  // sums
};

// A line about strategies whose choice does not matter. what: "dense attention's right answers".
std::string kept_by_mask_text(const std::vector<std::string>& strategies, const std::string& what);

}  // namespace kvasir::tool
