// See ktransformers_keys.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/ktransformers_keys.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace kvasir::tool {
namespace {

// Takes the options of these names out of a section, in their order.
std::vector<OptionSetting> take(PluginSection& section, std::initializer_list<const char*> names) {
  std::vector<OptionSetting> taken, rest;
  for (OptionSetting& option : section.options) {
    const bool wanted = std::find(names.begin(), names.end(), option.key) != names.end();
    (wanted ? taken : rest).push_back(std::move(option));
  }
  section.options = std::move(rest);
  return taken;
}

bool is_preselect(const PluginSection& section) {
  return section.plugin.value == "kvasir.preselect" || section.plugin.value == "preselect";
}

// Makes a kvasir.preselect from the keys of the section. Returns nothing when there are none, or
// when preselect_block is false.
std::optional<PluginSection> take_preselection(PluginSection& section) {
  const auto switches = take(section, {"preselect_block"});
  const auto counts = take(section, {"preselect_block_count"});
  if (switches.empty() && counts.empty()) return {};
  PluginSection made;
  made.kind = Kind::kSelector;
  made.options = take(section, {"kernel_size", "max_capacity_prompt"});
  made.options.insert(made.options.end(), counts.begin(), counts.end());
  const OptionSetting& on = switches.empty() ? counts.back() : switches.back();
  made.plugin = {"kvasir.preselect", on.origin};
  if (switches.empty()) return made;
  const auto* value = std::get_if<bool>(&on.value);
  if (!value) throw input_error(on.origin.text() + ": preselect_block must be true or false");
  return *value ? std::optional(std::move(made)) : std::nullopt;
}

}  // namespace

const std::map<std::string, std::string>& representative_types() {
  static const std::map<std::string, std::string> kTypes = {
      {"mean", "kvasir.mean"},     {"block_mean", "kvasir.mean"}, {"max", "kvasir.max"},
      {"block_max", "kvasir.max"}, {"quest", "kvasir.minmax"},    {"dynamic", "kvasir.dynamic"},
      {"fixed", "kvasir.fixed"},   {"fix", "kvasir.fixed"}};
  return kTypes;
}

void apply_preselect_keys(StrategyConfig& strategy) {
  for (size_t i = 0; i < strategy.selectors.size(); ++i) {
    if (is_preselect(strategy.selectors[i])) continue;
    auto made = take_preselection(strategy.selectors[i]);
    if (!made) continue;
    if (i > 0 && is_preselect(strategy.selectors[i - 1]))
      throw input_error(made->plugin.origin.text() +
                        ": the chain preselects already: put the key into its [[selector]] of "
                        "kvasir.preselect");
    strategy.selectors.insert(strategy.selectors.begin() + static_cast<ptrdiff_t>(i++),
                              std::move(*made));
  }
}

}  // namespace kvasir::tool
