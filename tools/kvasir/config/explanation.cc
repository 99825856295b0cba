// See explanation.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/explanation.h"

#include <cstdlib>

#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

// Whether this is budget_tokens or budget_blocks, as every selector here calls them.
bool is_budget(const kvasir_option_schema& schema) {
  const auto says = [](const char* key) {
    return std::string(key) == "budget_tokens" || std::string(key) == "budget_blocks";
  };
  bool found = says(schema.key);
  for (const char* const* alias = schema.aliases; alias && *alias; ++alias)
    found = found || says(*alias);
  return found;
}

// "96 blocks x 128 = 12288 tokens" for an option counted in blocks; empty for others.
std::string in_tokens(PluginHost& host, const Pipeline::Explained& section,
                      const ResolvedOptions::Explained& option, uint32_t block_size) {
  const OpenPlugin plugin = host.registry().open(section.kind, section.id, section.file);
  for (const auto* known : checked_schema(*plugin.desc)) {
    if (option.key != known->key || !known->unit || std::string(known->unit) != "blocks") continue;
    char* end = nullptr;
    const uint64_t blocks = std::strtoull(option.value.c_str(), &end, 10);
    if (end == option.value.c_str() || *end != '\0') return "";
    return format("%llu blocks x %u = %llu tokens", static_cast<unsigned long long>(blocks),
                  block_size, static_cast<unsigned long long>(blocks * block_size));
  }
  return "";
}

// For a budget key whose value is not the budget that results: the budget that results.
std::string overruled(PluginHost& host, const Pipeline::Explained& section,
                      const ResolvedOptions::Explained& option, const MemoryPlan::Budget& budget,
                      uint32_t block_size) {
  const OpenPlugin plugin = host.registry().open(section.kind, section.id, section.file);
  for (const auto* known : checked_schema(*plugin.desc)) {
    if (option.key != known->key || !is_budget(*known) || !budget.limited) continue;
    const bool in_blocks = known->unit && std::string(known->unit) == "blocks";
    char* end = nullptr;
    const uint64_t n = std::strtoull(option.value.c_str(), &end, 10);
    if (end == option.value.c_str() || *end != '\0') return "";  // not set
    if (n * (in_blocks ? block_size : 1) == budget.tokens) return "";
    return format("with the other keys: at most %llu",
                  static_cast<unsigned long long>(budget.tokens));
  }
  return "";
}

// The options that each plugin gets.
std::vector<ExplainedPlugin> explain_plugins(PluginHost& host, const Pipeline& pipeline,
                                             const MemoryPlan& plan, uint32_t block_size) {
  std::vector<ExplainedPlugin> plugins;
  size_t n_selectors = 0;
  for (const Pipeline::Explained& section : pipeline.explained) {
    ExplainedPlugin plugin;
    plugin.is_selector = section.kind == Kind::kSelector;
    plugin.table = table_name(section.kind);
    if (!section.holds.empty()) plugin.table += "." + section.holds;
    plugin.id = section.id;
    plugin.file = section.file;
    const MemoryPlan::Budget budget =
        plugin.is_selector ? plan.budgets[n_selectors++] : MemoryPlan::Budget{};
    for (const auto& option : section.options) {
      std::string note = option.note;
      for (const std::string& more : {in_tokens(host, section, option, block_size),
                                      overruled(host, section, option, budget, block_size)})
        if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
      plugin.options.push_back({option.key, option.value, option.origin, note});
    }
    plugins.push_back(plugin);
  }
  return plugins;
}

// Each selector's budget in tokens, and what the plugin logged about it.
std::vector<ExplainedBudget> explain_budgets(const PluginHost& host, const MemoryPlan& plan) {
  std::vector<ExplainedBudget> budgets;
  for (const MemoryPlan::Budget& budget : plan.budgets) {
    ExplainedBudget out{budget, {}};
    for (const auto& [plugin, text] : host.said())
      if (plugin == budget.selector) out.said.push_back(text);
    budgets.push_back(out);
  }
  return budgets;
}

}  // namespace

double Explanation::attended_share() const {
  return static_cast<double>(plan.attended_tokens) / context;
}

double Explanation::mean_share() const {
  const uint32_t n_sparse = n_layers - plan.n_dense_layers - plan.n_sliding_layers;
  return (attended_share() * n_sparse + plan.n_dense_layers +
          static_cast<double>(plan.sliding_tokens) / context) /
         n_layers;
}

Explanation explain_strategy(PluginHost& host, const Options& options,
                             const std::string& preset_name) {
  const StrategyConfig strategy = resolve_strategy(options);
  const Pipeline pipeline = build_pipeline(strategy, host.registry(), host.services());
  const Target target = target_of(options, preset_name, strategy);
  Explanation out;
  out.plan = plan_target(host, strategy, target);
  out.strategy = strategy.name;
  for (const ExplainLine& line : explain(strategy)) {
    if (!line.key.starts_with("cache.")) continue;
    const bool is_prompts = line.key == "cache.prompt_attention" && strategy.is_hybrid();
    out.cache.push_back({line.key, line.value, line.origin, is_prompts ? out.plan.prompts_by : ""});
  }
  out.plugins = explain_plugins(host, pipeline, out.plan, strategy.cache.block_size.value);
  out.budgets = explain_budgets(host, out.plan);
  out.model = options.model;
  if (options.model.empty())
    out.model = "shape of " + target.shape.name +
                (target.is_given ? "" : "; give -m or --preset for yours");
  out.context = target.context;
  out.n_layers = target.shape.n_layers;
  return out;
}

}  // namespace kvasir::tool
