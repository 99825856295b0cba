// Whether a strategy is right: against schemas and plugins, and a model's shape.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

struct StrategyCheck {
  std::string strategy;  // as the user named it
  std::string error;     // empty: it is right
  std::string note;      // what could not be judged without the model; empty: all was judged
};

// options.strategy names the strategy.
StrategyCheck check_strategy(PluginHost& host, const Options& options,
                             const std::string& preset_name);

Json to_json(const std::vector<StrategyCheck>& checks);
std::string to_text(const std::vector<StrategyCheck>& checks);  // of those that are right

}  // namespace kvasir::tool
