// TOML as it was written, flattened to tables of key, value and place: what the rest of this folder
// works on, so that files, environment and command line share every check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "core/error.h"

namespace kvasir::config {

struct RawTable {
  Origin origin;                       // of the header, or of the first key
  std::vector<OptionSetting> entries;  // in the order of the file
};

// All tables of one name. `is_array`: written as [[name]].
struct RawSection {
  std::string name;
  bool is_array = false;
  std::vector<RawTable> tables;
};

struct RawDocument {
  std::vector<Setting<std::string>> includes;
  std::vector<RawSection> sections;
};

// "<origin>: <what>" as an Error(kInput).
Error error_at(const Origin& origin, const std::string& what);
// That the key must be `wanted`, which its value is not.
Error wrong_type(const OptionSetting& entry, const std::string& wanted);

// " (did you mean "x"?)", or empty when nothing is near.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

// "an integer", "a list of integers" …, for messages.
const char* type_name(const OptionValue& value);
// As TOML would spell it.
std::string value_text(const OptionValue& value);

// The names of all tables, cache first.
const std::vector<std::string>& table_names();

// Bounds that keep a hostile file from costing more than its size.
inline constexpr size_t kMaxFileBytes = size_t{256} * 1024;
inline constexpr size_t kMaxDots =
    4096;  // every dot may open a table; tables are freed recursively
inline constexpr size_t kMaxIncludeDepth = 8;
inline constexpr size_t kMaxFiles = 64;

// Throws Error(kInput) with line and column of `label`.
RawDocument read_toml(const std::string& text, const std::string& label);
// One value of an override: TOML, else a bare word that counts as a string.
OptionValue read_value(const std::string& text, const Origin& origin);

// Sets one key of [cache]; unknown key, wrong type and range are errors at entry.origin.
void apply_cache_entry(const OptionSetting& entry, CacheConfig& cache);
// A whole [cache] table: additionally refuses a key and its alias together.
void apply_cache_table(const RawTable& table, CacheConfig& cache);
std::vector<std::string> cache_key_names();
// Sets one key of [blend], likewise.
void apply_blend_entry(const OptionSetting& entry, StrategyConfig& strategy);
void explain_blend(const StrategyConfig& strategy, std::vector<ExplainLine>& lines);
// Checks that need several keys.
void check_cache(const CacheConfig& cache);

using PluginNames = std::map<std::string, std::string>;  // StrategyConfig::representative_types

// Whether the key says which plugin a table of that kind is about.
bool names_plugin(const OptionSetting& entry, Kind kind, const PluginNames& representative_types);

// Adds or replaces an option; what names the plugin and `path` go to their fields, relative files
// resolved.
void apply_section_entry(const OptionSetting& entry, const PluginNames& representative_types,
                         PluginSection& section);

// KVASIR_SET_* of the environment, then `overrides`.
void apply_overrides(const std::vector<Override>& overrides, StrategyConfig& config);

}  // namespace kvasir::config
