// What a strategy is checked and explained against: a model's shape and a context.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {

struct Target {
  ModelShape shape;
  bool is_given = false;  // by -m or --preset; else a common shape, as deep as the strategy needs
  uint32_t context = 0;   // tokens: -c, else the strategy's, else the model's own
};
Target target_of(const Options& options, const std::string& preset_name,
                 const StrategyConfig& strategy);

// Memory and attended tokens of the strategy on the target.
MemoryPlan plan_target(PluginHost& host, const StrategyConfig& strategy, const Target& target);

}  // namespace kvasir::tool
