// Several strategies side by side: -s given more than once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "tools/kvasir/cli/options.h"

namespace kvasir::tool {

struct Arm {
  std::string label;
  StrategyConfig strategy;
};

// Repeated -s, --set for all of them, --plugin-dir.
void add_arm_flags(CLI::App& app, Options& options, std::vector<std::string>& strategies);

// Sets the control's chunk size to the largest of all, because the model's buffers must take it,
// and its block size to the one that most strategies have, so that one reading of a prompt serves
// them all.
void fit_control(Options& options, const std::vector<const StrategyConfig*>& strategies);

// Checks all strategies before the model is opened. Changes `options` so that a session made with
// them runs dense attention, the control, which fits them.
// makes_plugins: asked before the plugins of an arm are made, which is what checks them; false:
// they are not. Null: of all arms.
std::vector<Arm> resolve_arms(Options& options, const std::vector<std::string>& strategies,
                              const std::function<bool(const Arm&)>& makes_plugins = nullptr);

}  // namespace kvasir::tool
