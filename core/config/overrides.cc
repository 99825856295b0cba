// Environment variables and --set: one key each, over whatever the files said.
// SPDX-License-Identifier: Apache-2.0
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/config/raw.h"

namespace kvasir::config {
namespace {

constexpr const char* kPrefix = "KVASIR_SET_";

struct Target {
  std::string table;
  int64_t index = -1;  // of a selector chain; -1 = not said
  std::string holds;   // of two storages or backends, "window" or "context"; empty = not said
  std::string key;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 4 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// table <separator> [index <separator>] key
Target split(const std::string& name, char separator) {
  Target target;
  const size_t dot = name.find(separator);
  if (dot == std::string::npos) return target;
  target.table = name.substr(0, dot);
  target.key = name.substr(dot + 1);
  const size_t second = target.key.find(separator);
  if (target.table == "selector" && second != std::string::npos &&
      is_number(target.key.substr(0, second))) {
    target.index = std::stoll(target.key.substr(0, second));
    target.key = target.key.substr(second + 1);
  }
  return target;
}

bool has_two(const std::string& table, const StrategyConfig& strategy) {
  return (table == "storage" && strategy.window_storage) ||
         (table == "attention" && strategy.window_attention);
}

// <window or context> <separator> key, where the strategy has two of the table or the separator
// cannot be part of a key.
void split_holds(Target& target, char separator, const StrategyConfig& strategy) {
  if (target.table != "storage" && target.table != "attention") return;
  if (separator != '.' && !has_two(target.table, strategy)) return;
  for (const std::string holds : {"window", "context"}) {
    if (target.key.rfind(holds + separator, 0) != 0) continue;
    target.holds = holds;
    target.key = target.key.substr(holds.size() + 1);
    return;
  }
}

bool is_table(const std::string& name) {
  const auto& names = table_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> full_cache_names() {
  std::vector<std::string> names = cache_key_names();
  for (std::string& name : names) name.insert(0, "cache.");
  return names;
}

PluginSection& find_selector(const Target& target, const Origin& origin, StrategyConfig& strategy) {
  auto& selectors = strategy.selectors;
  if (selectors.empty() && target.index <= 0) {
    selectors.emplace_back().kind = Kind::kSelector;
  }
  if (target.index >= 0) {
    if (static_cast<size_t>(target.index) >= selectors.size()) {
      throw error_at(origin, "selector." + std::to_string(target.index) + ": the strategy has " +
                                 std::to_string(selectors.size()) + " selector(s), counted from 0");
    }
    return selectors[static_cast<size_t>(target.index)];
  }
  if (selectors.size() > 1) {
    throw error_at(origin, "the strategy has a chain of " + std::to_string(selectors.size()) +
                               " selectors: say which, as selector.0." + target.key);
  }
  return selectors[0];
}

PluginSection& find_section(const Target& target, const Origin& origin, StrategyConfig& strategy) {
  if (target.table == "selector") return find_selector(target, origin, strategy);
  if (target.table == "representative") {
    if (!strategy.representative) strategy.representative.emplace();
    strategy.representative->kind = Kind::kRepresentative;
    return *strategy.representative;
  }
  const bool is_storage = target.table == "storage", two = has_two(target.table, strategy);
  if (two && target.holds.empty())
    throw error_at(origin, "the strategy has two [[" + target.table + "]] tables: say which, as " +
                               target.table + ".window." + target.key + " or " + target.table +
                               ".context." + target.key);
  if (!two && !target.holds.empty())
    throw error_at(origin, target.table + "." + target.holds + ": the strategy has one [" +
                               target.table + "], write " + target.table + "." + target.key);
  if (target.holds == "window")
    return is_storage ? *strategy.window_storage : *strategy.window_attention;
  PluginSection& section = is_storage ? strategy.storage : strategy.attention;
  section.kind = is_storage ? Kind::kStorage : Kind::kAttention;
  return section;
}

void apply(const Target& target, const std::string& value, const Origin& origin,
           StrategyConfig& strategy) {
  const OptionSetting entry{target.key, read_value(value, origin), origin};
  if (target.table == "cache") {
    apply_cache_entry(entry, strategy.cache);
    return;
  }
  if (target.table == "blend") {
    apply_blend_entry(entry, strategy);
    return;
  }
  PluginSection& section = find_section(target, origin, strategy);
  if (entry.key == "holds" && (target.table == "storage" || target.table == "attention"))
    throw error_at(origin, target.table +
                               ".holds stands in the TOML file: there it says which of "
                               "two [[" +
                               target.table + "]] tables is the window's");
  if (names_plugin(entry, section.kind, strategy.representative_types)) {
    // Options the user wrote stay; ours were for the old one.
    std::erase_if(section.options, [](const OptionSetting& o) {
      return o.origin.source == Origin::Source::kDefault;
    });
    if (section.path && section.path->origin.source < origin.source) section.path.reset();
  }
  apply_section_entry(entry, strategy.representative_types, section);
}

Origin named(Origin origin, Origin::Source source, const std::string& name) {
  if (origin.source == Origin::Source::kDefault) origin.source = source;
  if (origin.name.empty()) origin.name = name;
  return origin;
}

void apply_override(const Override& o, StrategyConfig& strategy) {
  const Origin origin =
      named(o.origin, Origin::Source::kCommandLine, "--set " + o.key + "=" + o.value);
  Target target = split(o.key, '.');
  split_holds(target, '.', strategy);
  if (target.table.empty()) {
    throw error_at(origin, "\"" + o.key + "\" names no table: write <table>.<key>" +
                               did_you_mean("cache." + o.key, full_cache_names()));
  }
  if (!is_table(target.table)) {
    throw error_at(origin, "unknown table \"" + target.table + "\"" +
                               did_you_mean(target.table, table_names()));
  }
  const bool is_plain = !target.key.empty() && target.key.find('.') == std::string::npos;
  if (!is_plain) throw error_at(origin, "\"" + o.key + "\" must be <table>.<key>");
  apply(target, o.value, origin, strategy);
}

void apply_variable(const std::string& variable, const std::string& value,
                    StrategyConfig& strategy) {
  const Origin origin{Origin::Source::kEnvironment, variable, 0, 0};
  std::string name = variable.substr(std::string(kPrefix).size());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  Target target = split(name, '_');
  split_holds(target, '_', strategy);
  if (!is_table(target.table) || target.key.empty()) {
    throw error_at(origin, "names no table and key: write " + std::string(kPrefix) +
                               "<TABLE>_<KEY>" + did_you_mean(target.table, table_names()));
  }
  apply(target, value, origin, strategy);
}

std::vector<std::pair<std::string, std::string>> environment() {
  std::vector<std::pair<std::string, std::string>> found;
  // Who may start a privileged process must not steer it by its environment.
  if (getauxval(AT_SECURE) != 0 || !environ) return found;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string::npos || text.rfind(kPrefix, 0) != 0) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  // The plugin first, so that options follow the plugin they are for; then by name.
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(!a.first.ends_with("_PLUGIN"), a) <
           std::pair(!b.first.ends_with("_PLUGIN"), b);
  });
  return found;
}

}  // namespace

void apply_overrides(const std::vector<Override>& overrides, StrategyConfig& strategy) {
  for (const auto& [variable, value] : environment()) apply_variable(variable, value, strategy);
  for (const Override& o : overrides) apply_override(o, strategy);
  const auto check = [](const PluginSection& section) {
    if (section.plugin.value.empty() && !section.options.empty()) {
      throw error_at(section.options[0].origin, "[" + std::string(table_name(section.kind)) +
                                                    "] names no plugin: set " +
                                                    table_name(section.kind) + ".plugin too");
    }
  };
  for (const PluginSection& section : strategy.selectors) check(section);
  if (strategy.representative) check(*strategy.representative);
  check(strategy.storage);
  check(strategy.attention);
  if (strategy.window_storage) check(*strategy.window_storage);
  if (strategy.window_attention) check(*strategy.window_attention);
}

}  // namespace kvasir::config
