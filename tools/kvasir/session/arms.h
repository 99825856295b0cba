// Several strategies side by side, as -s given more than once says.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// All are checked before the model is opened. `options` is left fit for a session of dense
// attention, the control: with the largest chunk of all, which the model's buffers take, and the
// blocks that most of them have, so that one prompt is read for them all.
std::vector<Arm> resolve_arms(Options& options, const std::vector<std::string>& strategies);

}  // namespace kvasir::tool
