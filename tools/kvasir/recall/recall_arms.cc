// See recall_arms.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_arms.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

constexpr const char* kBudget = "budget_tokens";

bool names(const kvasir_option_schema& option, const std::string& key) {
  const std::vector<std::string> aliases = alias_names(option);
  return key == option.key || std::find(aliases.begin(), aliases.end(), key) != aliases.end();
}

void forget(PluginSection& section, const kvasir_option_schema& option) {
  std::erase_if(section.options, [&](const OptionSetting& set) { return names(option, set.key); });
}

Schema schema_of(const PluginSection& section, PluginHost& host) {
  const std::string path = section.path ? section.path->value : "";
  return checked_schema(*host.registry().open(section.kind, section.plugin.value, path).desc);
}

// Dense attention does not choose: a budget means nothing to it.
bool chooses(const Selector& selector) {
  return selector.has_select() || selector.has_evict_plan();
}

// Removes the suffix from the name of a strategy. A file whose name has it keeps it.
bool take_suffix(std::string& name, const std::string& suffix) {
  if (!name.ends_with(suffix) || std::filesystem::exists(name)) return false;
  name.resize(name.size() - suffix.size());
  return true;
}

}  // namespace

RecallArm::RecallArm(const Options& options, const std::string& name,
                     const RecallSettings& settings, PluginHost& host) {
  Options with = options;
  with.strategy = name;
  std::string suffixes;
  for (bool found = true; found;) {
    found = false;
    for (const auto& [suffix, set] : {std::pair{"/token", "selector.unit=token"},
                                      std::pair{"/shared", "cache.head_select_mode=shared"}}) {
      if (!take_suffix(with.strategy, suffix)) continue;
      with.set.emplace_back(set);
      suffixes = suffix + suffixes;
      found = true;
    }
  }
  for (const auto& [key, value] : {std::pair{"block_size", settings.block_size},
                                   {"sink_tokens", settings.sink},
                                   {"window_tokens", settings.window}})
    with.set.push_back(std::string("cache.") + key + "=" + std::to_string(value));
  with.set.emplace_back("cache.dense_layers=[0]");
  with.set.emplace_back("storage.type_k=f32");
  with.set.emplace_back("storage.type_v=f32");
  try {
    resolve(with, settings, host);
  } catch (const Error& e) {
    if (name.find('/') == std::string::npos) throw;
    throw Error(e.kind(), "-s " + name + ": " + e.what() +
                              " (/token or /shared may stand behind the name of a strategy)");
  }
  label_ = strategy_.name + suffixes;
}

void RecallArm::resolve(const Options& options, const RecallSettings& settings, PluginHost& host) {
  strategy_ = resolve_strategy(options);
  if (chooses(*build_pipeline(strategy_, host.registry(), host.services()).selectors.front()))
    add_budget(settings, host);
  if (!knobs_.empty()) add_shares(host);
  std::vector<double> starts;
  for (const FitKnob& knob : knobs_) starts.push_back(knob.start);
  build_pipeline(strategy(starts), host.registry(), host.services());
}

void RecallArm::add(size_t selector, const std::string& key, bool is_whole, const FitKnob& knob) {
  const std::string table =
      strategy_.selectors.size() > 1 ? "selector." + std::to_string(selector) : "selector";
  knobs_.push_back(knob);
  settings_.push_back({selector, key, table + "." + key, is_whole});
}

// The first selector of a chain gets the budget. It replaces what a preset says in the paper's own
// terms, which are optional.
void RecallArm::add_budget(const RecallSettings& settings, PluginHost& host) {
  PluginSection& section = strategy_.selectors.front();
  for (const kvasir_option_schema* option : schema_of(section, host)) {
    const bool is_native =
        option->flags & KVASIR_OPTION_OPTIONAL && option->type != KVASIR_OPTION_PATH;
    const bool is_budget = option->key == std::string(kBudget);
    if (is_native || is_budget) forget(section, *option);
    if (!is_budget) continue;
    const bool may_be_none = option->min.type == KVASIR_OPTION_INT && option->min.i == 0;
    const double least = may_be_none ? 0.0 : std::min(settings.block_size, settings.budget);
    const auto most = static_cast<double>(std::max(settings.context, settings.budget));
    add(0, kBudget, true, {least, most, static_cast<double>(settings.budget)});
  }
}

// Options from 0 to 1 that the budget does not decide, unless command line or environment set them.
void RecallArm::add_shares(PluginHost& host) {
  for (size_t i = 0; i < strategy_.selectors.size(); ++i) {
    PluginSection& section = strategy_.selectors[i];
    for (const kvasir_option_schema* option : schema_of(section, host)) {
      if (option->type != KVASIR_OPTION_FLOAT || option->flags & KVASIR_OPTION_OPTIONAL ||
          option->min.type != KVASIR_OPTION_FLOAT || option->max.type != KVASIR_OPTION_FLOAT ||
          option->min.f < 0.0 || option->max.f > 1.0)
        continue;
      double start = option->def.f;
      bool is_fixed = false;
      for (OptionSetting& set : section.options) {
        if (!names(*option, set.key)) continue;
        set.key = option->key;  // not an alias, so that strategy() finds it
        is_fixed = set.origin.source == Origin::Source::kEnvironment ||
                   set.origin.source == Origin::Source::kCommandLine;
        if (const auto* real = std::get_if<double>(&set.value)) start = *real;
        if (const auto* whole = std::get_if<int64_t>(&set.value))
          start = static_cast<double>(*whole);
      }
      if (!is_fixed) add(i, option->key, false, {option->min.f, option->max.f, start});
    }
  }
}

StrategyConfig RecallArm::strategy(const std::vector<double>& values) const {
  StrategyConfig out = strategy_;
  for (size_t i = 0; i < settings_.size(); ++i) {
    if (i > 0 && values[i] == knobs_[i].start) continue;  // keep what the strategy says
    const Setting& setting = settings_[i];
    PluginSection& section = out.selectors[setting.selector];
    std::erase_if(section.options,
                  [&](const OptionSetting& set) { return set.key == setting.key; });
    if (setting.is_whole)
      section.options.push_back({setting.key, int64_t{std::llround(values[i])}, {}});
    else
      section.options.push_back({setting.key, values[i], {}});
  }
  return out;
}

}  // namespace kvasir::tool
