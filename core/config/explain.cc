// The resolved configuration as lines of key, value and where the value came from.
// SPDX-License-Identifier: Apache-2.0
#include "core/config/cache_keys.h"
#include "core/config/raw.h"

namespace kvasir {
namespace {

void explain_section(const std::string& table, const PluginSection& section,
                     std::vector<ExplainLine>& lines) {
  lines.push_back(
      {table + ".plugin", config::value_text(section.plugin.value), section.plugin.origin.text()});
  if (section.path) {
    lines.push_back(
        {table + ".path", config::value_text(section.path->value), section.path->origin.text()});
  }
  for (const OptionSetting& option : section.options) {
    lines.push_back(
        {table + "." + option.key, config::value_text(option.value), option.origin.text()});
  }
}

}  // namespace

std::vector<ExplainLine> explain(const StrategyConfig& strategy) {
  std::vector<ExplainLine> lines;
  for (const config::CacheKey& key : config::cache_keys()) {
    if (!key.print) continue;
    lines.push_back({std::string("cache.") + key.name, key.print(strategy.cache),
                     key.origin(strategy.cache).text()});
  }
  config::explain_blend(strategy, lines);
  for (size_t i = 0; i < strategy.selectors.size(); ++i) {
    const bool is_chain = strategy.selectors.size() > 1;
    const std::string table = is_chain ? "selector." + std::to_string(i) : "selector";
    explain_section(table, strategy.selectors[i], lines);
  }
  if (strategy.representative) explain_section("representative", *strategy.representative, lines);
  const auto explain_two = [&](const std::string& table, const PluginSection& context,
                               const std::optional<PluginSection>& window) {
    if (window) explain_section(table + ".window", *window, lines);
    if (!context.plugin.value.empty())
      explain_section(window ? table + ".context" : table, context, lines);
  };
  explain_two("storage", strategy.storage, strategy.window_storage);
  explain_two("attention", strategy.attention, strategy.window_attention);
  return lines;
}

}  // namespace kvasir
