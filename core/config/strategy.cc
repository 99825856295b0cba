// Strategy files: includes, layers, and the tables of the plugins.
// SPDX-License-Identifier: Apache-2.0
#include "core/config/strategy.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "core/config/raw.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using config::error_at;
using config::RawDocument;
using config::RawSection;
using config::RawTable;

std::string read_file(const fs::path& path, const Origin* from) {
  const auto fail = [&](const std::string& what) {
    const std::string text = path.string() + ": " + what;
    return from ? error_at(*from, "include: " + text) : input_error(text);
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) throw fail("no such file");
  if (error) throw fail(error.message());
  if (status.type() == fs::file_type::directory) throw fail("is a directory, not a TOML file");
  if (status.type() != fs::file_type::regular) throw fail("is not a regular file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw fail("cannot be opened for reading");
  std::string text(config::kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) throw fail("cannot be read: " + std::generic_category().message(errno));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

PluginSection make_section(Kind kind, const RawTable& table, const config::PluginNames& types) {
  PluginSection section;
  section.kind = kind;
  for (const OptionSetting& entry : table.entries)
    config::apply_section_entry(entry, types, section);
  return section;
}

// Two keys that name it contradict each other.
bool names_plugin(Kind kind, const RawTable& table, const config::PluginNames& types) {
  const OptionSetting* found = nullptr;
  for (const OptionSetting& entry : table.entries) {
    if (!config::names_plugin(entry, kind, types)) continue;
    if (found)
      throw error_at(entry.origin, entry.key + " and " + found->key + " (" + found->origin.text() +
                                       ") both name the plugin: keep one");
    found = &entry;
  }
  return found != nullptr;
}

Error no_plugin(const std::string& name, const Origin& origin) {
  return error_at(origin, "[" + name + "] names no plugin: add plugin = \"<id>\"");
}

// A table that names a plugin replaces what an earlier layer said; one that does not adds options
// to it.
void merge_table(Kind kind, const RawTable& table, const config::PluginNames& types,
                 PluginSection& section) {
  if (names_plugin(kind, table, types)) {
    section = make_section(kind, table, types);
    return;
  }
  if (section.plugin.value.empty()) throw no_plugin(table_name(kind), table.origin);
  section.kind = kind;
  for (const OptionSetting& entry : table.entries)
    config::apply_section_entry(entry, types, section);
}

void merge_selectors(const RawSection& section, const config::PluginNames& types,
                     std::vector<PluginSection>& selectors) {
  if (!section.is_array) {
    const RawTable& table = section.tables[0];
    if (!names_plugin(Kind::kSelector, table, types) && selectors.size() > 1) {
      throw error_at(table.origin,
                     "[selector] without plugin cannot say which selector of the chain it means: "
                     "write the whole [[selector]] chain");
    }
    if (selectors.size() != 1) selectors.assign(1, PluginSection{});
    merge_table(Kind::kSelector, table, types, selectors[0]);
    return;
  }
  std::vector<PluginSection> chain;
  for (const RawTable& table : section.tables) {
    if (!names_plugin(Kind::kSelector, table, types)) throw no_plugin("[selector]", table.origin);
    chain.push_back(make_section(Kind::kSelector, table, types));
  }
  selectors = std::move(chain);
}

const OptionSetting* find_holds(const RawTable& table) {
  const auto at = std::find_if(table.entries.begin(), table.entries.end(),
                               [](const OptionSetting& entry) { return entry.key == "holds"; });
  return at == table.entries.end() ? nullptr : &*at;
}

// "window" or "context"; the entry leaves the table.
std::string take_holds(const std::string& name, RawTable& table) {
  const OptionSetting* holds = find_holds(table);
  if (!holds)
    throw error_at(table.origin, "one of two [[" + name +
                                     "]] tables does not say what it holds: add holds = "
                                     "\"window\" or holds = \"context\"");
  const auto* text = std::get_if<std::string>(&holds->value);
  if (!text || (*text != "window" && *text != "context"))
    throw error_at(holds->origin, name + ".holds is \"window\" or \"context\", not " +
                                      config::value_text(holds->value));
  std::string value = *text;
  std::erase_if(table.entries, [](const OptionSetting& entry) { return entry.key == "holds"; });
  return value;
}

// [[storage]] or [[attention]] twice: one for the window, one for the context.
void merge_two(Kind kind, const RawSection& section, const config::PluginNames& types,
               PluginSection& context, std::optional<PluginSection>& window) {
  if (section.tables.size() > 2)
    throw error_at(section.tables[2].origin, "a third [[" + section.name +
                                                 "]]: there are two at most, holds = \"window\" "
                                                 "and holds = \"context\"");
  std::optional<PluginSection> made[2];  // window, context
  for (RawTable table : section.tables) {
    const Origin origin = table.origin;
    const std::string holds = take_holds(section.name, table);
    auto& slot = made[holds == "window" ? 0 : 1];
    if (slot)
      throw error_at(origin, "both [[" + section.name + "]] tables say holds = \"" + holds +
                                 "\": one holds the window, the other the context");
    if (!names_plugin(kind, table, types)) throw no_plugin("[" + section.name + "]", origin);
    slot = make_section(kind, table, types);
  }
  window = std::move(made[0]);
  context = std::move(*made[1]);
}

// One table stands for the whole context, two share it.
void merge_holders(Kind kind, const RawSection& section, const config::PluginNames& types,
                   PluginSection& context, std::optional<PluginSection>& window) {
  if (section.tables.size() > 1) return merge_two(kind, section, types, context, window);
  const RawTable& table = section.tables[0];
  if (const OptionSetting* holds = find_holds(table))
    throw error_at(holds->origin, "holds is for two [[" + section.name +
                                      "]] tables, one for the window and one for the context: add "
                                      "the other, or leave holds out");
  if (window && !names_plugin(kind, table, types))
    throw error_at(table.origin, "[" + section.name +
                                     "] without plugin cannot say which of two it means: write "
                                     "both [[" +
                                     section.name + "]] tables");
  merge_table(kind, table, types, context);
  window.reset();
}

// Blocks that one storage holds are read by one backend, but for those of the context in prompts.
void check_hybrid(const StrategyConfig& strategy) {
  const auto& prompts = strategy.cache.prompt_attention;
  if (!strategy.is_hybrid() && prompts.value != PromptAttention::kAuto)
    throw error_at(prompts.origin,
                   "prompt_attention says which of two [[attention]] tables attends prompts to the "
                   "context, and there are not two: leave it out, or write two [[storage]] and two "
                   "[[attention]] tables, holds = \"window\" and holds = \"context\"");
  if (strategy.window_storage.has_value() == strategy.window_attention.has_value()) return;
  const bool two_storages = strategy.window_storage.has_value();
  const PluginSection& there = two_storages ? *strategy.window_storage : *strategy.window_attention;
  const std::string has = table_name(there.kind), lacks = two_storages ? "attention" : "storage";
  throw error_at(there.plugin.origin, "there are two [[" + has + "]] tables and one [" + lacks +
                                          "]: write two [[" + lacks +
                                          "]] tables, holds = \"window\" and holds = "
                                          "\"context\", too");
}

const RawTable& only_table(const RawSection& section) {
  if (section.tables.size() > 1) {
    throw error_at(section.tables[1].origin,
                   "more than one [[" + section.name + "]] is not supported yet: keep one");
  }
  return section.tables[0];
}

void merge_document(const RawDocument& document, StrategyConfig& strategy) {
  const config::PluginNames& types = strategy.representative_types;
  for (const RawSection& section : document.sections) {
    if (section.name == "selector") {
      merge_selectors(section, types, strategy.selectors);
      continue;
    }
    if (section.name == "storage") {
      merge_holders(Kind::kStorage, section, types, strategy.storage, strategy.window_storage);
      continue;
    }
    if (section.name == "attention") {
      merge_holders(Kind::kAttention, section, types, strategy.attention,
                    strategy.window_attention);
      continue;
    }
    const RawTable& table = only_table(section);
    if (section.name == "cache") {
      config::apply_cache_table(table, strategy.cache);
    } else if (section.name == "blend") {
      for (const OptionSetting& entry : table.entries) config::apply_blend_entry(entry, strategy);
    } else {
      PluginSection merged = strategy.representative.value_or(PluginSection{});
      merge_table(Kind::kRepresentative, table, types, merged);
      strategy.representative = std::move(merged);
    }
  }
}

// Reads files depth first; an include comes before the keys of the file that includes it.
class FileLoader {
 public:
  explicit FileLoader(StrategyConfig& strategy) : strategy_(strategy) {}

  void load(const fs::path& path, const Origin* from) {
    const std::string text = read_file(path, from);
    const fs::path canonical = fs::canonical(path);
    if (std::find(open_.begin(), open_.end(), canonical) != open_.end()) {
      throw error_at(*from, "include: " + path.string() + " includes itself" + chain(canonical));
    }
    if (open_.size() >= config::kMaxIncludeDepth) {
      throw error_at(*from, "include: nested deeper than " +
                                std::to_string(config::kMaxIncludeDepth) + " files");
    }
    if (++n_files_ > config::kMaxFiles) {
      throw error_at(*from, "include: more than " + std::to_string(config::kMaxFiles) + " files");
    }
    open_.push_back(canonical);
    const RawDocument document = config::read_toml(text, path.string());
    for (const auto& include : document.includes) {
      load(path.parent_path() / include.value, &include.origin);
    }
    merge_document(document, strategy_);
    open_.pop_back();
  }

 private:
  std::string chain(const fs::path& repeated) const {
    std::string text = ": ";
    for (const fs::path& file : open_) text += file.filename().string() + " -> ";
    return text + repeated.filename().string();
  }

  StrategyConfig& strategy_;
  std::vector<fs::path> open_;
  size_t n_files_ = 0;
};

void finish(const std::vector<Override>& overrides, StrategyConfig& strategy) {
  config::apply_overrides(overrides, strategy);
  check_hybrid(strategy);
  config::check_cache(strategy.cache);
}

}  // namespace

namespace config {

namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// representative_type = "QUEST"
std::string plugin_of_type(const OptionSetting& type, const PluginNames& types) {
  const auto* name = std::get_if<std::string>(&type.value);
  if (const auto found = types.find(name ? lower(*name) : ""); found != types.end())
    return found->second;
  std::string known;
  for (const auto& [other, plugin] : types) known += (known.empty() ? "" : ", ") + other;
  throw error_at(type.origin, type.key + " = " + value_text(type.value) + " is none of " + known +
                                  "; another plugin goes under plugin = \"<id>\"");
}

// kv_type = "FP16" means type_k and type_v, in the spelling of those.
OptionSetting type_option(const char* key, const OptionSetting& kv_type) {
  OptionSetting made = kv_type;
  made.key = key;
  if (auto* name = std::get_if<std::string>(&made.value)) {
    *name = lower(*name);
    if (*name == "fp16" || *name == "fp32") name->erase(1, 1);
  }
  return made;
}

}  // namespace

bool names_plugin(const OptionSetting& entry, Kind kind, const PluginNames& representative_types) {
  if (entry.key == "plugin") return true;
  return kind == Kind::kRepresentative && !representative_types.empty() &&
         (entry.key == "representative_type" || entry.key == "anchor_type");
}

void apply_section_entry(const OptionSetting& entry, const PluginNames& representative_types,
                         PluginSection& section) {
  if (section.kind == Kind::kStorage && entry.key == "kv_type") {
    for (const char* key : {"type_k", "type_v"})
      apply_section_entry(type_option(key, entry), representative_types, section);
    return;
  }
  if (entry.key != "plugin" && names_plugin(entry, section.kind, representative_types)) {
    section.plugin = {plugin_of_type(entry, representative_types), entry.origin};
    section.path.reset();
    return;
  }
  if (entry.key != "plugin" && entry.key != "path") {
    const auto same = [&](const OptionSetting& o) { return o.key == entry.key; };
    std::erase_if(section.options, same);
    section.options.push_back(entry);
    return;
  }
  const auto* text = std::get_if<std::string>(&entry.value);
  if (!text || text->empty()) {
    throw error_at(entry.origin, std::string(table_name(section.kind)) + "." + entry.key +
                                     " must be a string that is not empty" +
                                     (text ? "" : std::string(", not ") + type_name(entry.value)));
  }
  // A plugin may be named by its file; like every path, relative to the file that says so.
  std::string value = *text;
  const bool is_path = entry.key == "path" || value.find('/') != std::string::npos;
  if (is_path && fs::path(value).is_relative() && entry.origin.source == Origin::Source::kFile) {
    value = fs::absolute(fs::path(entry.origin.name).parent_path() / value).lexically_normal();
  }
  if (entry.key == "plugin") {
    section.plugin = {value, entry.origin};
  } else {
    section.path = Setting<std::string>{value, entry.origin};
  }
}

}  // namespace config

StrategyConfig load_strategy(const std::string& path, const std::vector<Override>& overrides,
                             const StrategyConfig& defaults) {
  StrategyConfig strategy = defaults;
  if (!path.empty()) {
    strategy.name = fs::path(path).stem().string();
    FileLoader(strategy).load(path, nullptr);
  }
  if (strategy.name.empty()) strategy.name = "default";
  finish(overrides, strategy);
  return strategy;
}

StrategyConfig parse_strategy(const std::string& toml, const std::string& label,
                              const std::vector<Override>& overrides,
                              const StrategyConfig& defaults) {
  StrategyConfig strategy = defaults;
  strategy.name = fs::path(label).stem().string();
  if (strategy.name.empty()) strategy.name = "default";
  const RawDocument document = config::read_toml(toml, label);
  if (!document.includes.empty()) {
    throw error_at(document.includes[0].origin, "include needs a file: a text includes nothing");
  }
  merge_document(document, strategy);
  finish(overrides, strategy);
  return strategy;
}

}  // namespace kvasir
