// A strategy in full: every value and its origin, the tokens it attends to, the memory it needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/config/target.h"

namespace kvasir::tool {

struct ExplainedValue {
  std::string key;
  std::string value;   // as TOML writes it, or "not set"
  std::string origin;  // file and line, flag, environment, default
  std::string note;    // what the value means in tokens, or which key overrules it; may be empty
};

struct ExplainedPlugin {
  std::string table;  // "selector", "storage.window"
  std::string id, file;
  std::vector<ExplainedValue> options;
  bool is_selector = false;
};

struct ExplainedBudget {
  MemoryPlan::Budget budget;
  std::vector<std::string> said;  // by the plugin, in its own words
};

struct Explanation {
  std::string strategy;
  std::vector<ExplainedValue> cache;
  std::vector<ExplainedPlugin> plugins;
  std::vector<ExplainedBudget> budgets;  // per selector
  std::string model;                     // file, or the shape's name
  uint32_t context = 0, n_layers = 0;
  MemoryPlan plan;

  double attended_share() const;  // of the context, in a layer that is not dense
  double mean_share() const;      // over all layers
};

// options.strategy names the strategy.
Explanation explain_strategy(PluginHost& host, const Options& options,
                             const std::string& preset_name);

Json to_json(const Explanation& explanation);
std::string to_text(const Explanation& explanation);

}  // namespace kvasir::tool
