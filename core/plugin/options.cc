// ResolvedOptions: the user's settings matched against a plugin's schema.
// SPDX-License-Identifier: Apache-2.0
#include <strings.h>

#include <algorithm>

#include "core/config/raw.h"
#include "core/plugin/alternatives.h"
#include "core/plugin/option_schema.h"
#include "core/plugin/registry.h"

namespace kvasir {
namespace {

// Environment variables have no case, so neither has a key that comes from one.
bool is_named(const std::string& name, const OptionSetting& setting) {
  if (name == setting.key) return true;
  return setting.origin.source == Origin::Source::kEnvironment &&
         strcasecmp(name.c_str(), setting.key.c_str()) == 0;
}

bool means(const OptionSetting& setting, const kvasir_option_schema& option) {
  if (is_named(option.key, setting)) return true;
  const auto aliases = alias_names(option);
  return std::any_of(aliases.begin(), aliases.end(),
                     [&](const std::string& alias) { return is_named(alias, setting); });
}

Error unknown_option(const kvasir_desc& desc, const Schema& schema, const OptionSetting& setting) {
  std::vector<std::string> names = {"plugin", "path"};
  std::string listed;
  for (const auto* option : schema) {
    names.emplace_back(option->key);
    listed += (listed.empty() ? "" : ", ") + names.back();
    for (const std::string& alias : alias_names(*option)) names.push_back(alias);
  }
  const auto cache = config::cache_key_names();
  if (std::find(cache.begin(), cache.end(), setting.key) != cache.end())
    return config::error_at(setting.origin, setting.key + " is no option of plugin " +
                                                std::string(desc.id) +
                                                ": it belongs in [cache], which holds for all");
  const std::string hint = config::did_you_mean(setting.key, names);
  std::string text = "unknown option " + setting.key + " of plugin " + desc.id + hint;
  if (hint.empty()) text += listed.empty() ? "; it has no options" : "; it has: " + listed;
  return config::error_at(setting.origin, text);
}

// The setting that wins among a key and its aliases; two of one precedence contradict each other.
const OptionSetting* find_setting(const kvasir_option_schema& option,
                                  const PluginSection& section) {
  const OptionSetting* found = nullptr;
  for (const OptionSetting& setting : section.options) {
    if (!means(setting, option)) continue;
    if (found && found->origin.source == setting.origin.source && found->key != setting.key &&
        found->origin.name == setting.origin.name) {
      throw config::error_at(setting.origin, setting.key + " and " + found->key + " (" +
                                                 found->origin.text() +
                                                 ") are two names of one option: keep one");
    }
    if (!found || setting.origin.source >= found->origin.source) found = &setting;
  }
  return found;
}

void add_note(std::string& note, const std::string& text) {
  note += (note.empty() ? "" : "; ") + text;
}

}  // namespace

ResolvedOptions::ResolvedOptions(const kvasir_desc& desc, const PluginSection& section) {
  const Schema schema = checked_schema(desc);
  for (const OptionSetting& setting : section.options) {
    const auto fits = [&](const kvasir_option_schema* option) { return means(setting, *option); };
    if (std::any_of(schema.begin(), schema.end(), fits)) continue;
    if (section.plugin.origin.source <= setting.origin.source)
      throw unknown_option(desc, schema, setting);
    explained_.push_back({setting.key, kSetAside, setting.origin.text(),
                          "written for another plugin than the one of " +
                              section.plugin.origin.text() + ", which has no such option"});
  }
  std::vector<const OptionSetting*> set;
  set.reserve(schema.size());
  for (const kvasir_option_schema* option : schema) set.push_back(find_setting(*option, section));
  const std::vector<OptionVerdict> verdicts = decide_alternatives(schema, set);
  for (size_t i = 0; i < schema.size(); ++i) {
    if (verdicts[i].kind == OptionVerdict::Kind::kTaken)
      take(desc, section, *schema[i], set[i], verdicts[i].note);
    else if (set[i])
      explained_.push_back({schema[i]->key, kOverruled, set[i]->origin.text(), verdicts[i].note});
    else
      explained_.push_back({schema[i]->key, kNotSet, "default", verdicts[i].note});
  }
}

void ResolvedOptions::take(const kvasir_desc& desc, const PluginSection& section,
                           const kvasir_option_schema& option, const OptionSetting* setting,
                           const std::string& note) {
  Explained line{option.key, "", "default", note};
  if (setting) {
    const kvasir_value value = convert_option(option, *setting, storage_, line.note);
    const auto said_in = static_cast<uint32_t>(setting->origin.source);
    values_.push_back({option.key, value, std::max(1u, said_in), 0});
    line.value = option_value_text(option, value);
    line.origin = setting->origin.text();
    names_files_ |= option.type == KVASIR_OPTION_PATH;
    if (setting->key != option.key) add_note(line.note, "written as " + setting->key);
    if (option.flags & KVASIR_OPTION_DEPRECATED)
      add_note(line.note,
               std::string("deprecated: ") + (option.help ? option.help : "will go away"));
  } else if (option.flags & KVASIR_OPTION_REQUIRED) {
    throw config::error_at(section.plugin.origin,
                           "plugin " + std::string(desc.id) + " needs the option " + option.key +
                               (option.help ? std::string(" (") + option.help + ")" : "") +
                               ": add it to [" + table_name(section.kind) + "]");
  } else if (option.flags & KVASIR_OPTION_OPTIONAL) {
    line.value = kNotSet;
  } else {
    kvasir_value value = option.def;
    value.type = option.type;
    values_.push_back({option.key, value, 0, 0});
    line.value = option_value_text(option, value);
  }
  explained_.push_back(std::move(line));
}

}  // namespace kvasir
