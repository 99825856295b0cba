// The only place that knows toml++: text to RawDocument, with bounds on what a file may cost.
// SPDX-License-Identifier: Apache-2.0
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>

#include "core/config/raw.h"

namespace kvasir::config {
namespace {

Origin file_origin(const std::string& label, const toml::source_region& region) {
  return {Origin::Source::kFile, label, region.begin.line, region.begin.column};
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 200)) {
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return result;
}

OptionValue convert_list(const toml::array& array, const Origin& origin, const std::string& key) {
  std::vector<int64_t> list;
  for (const toml::node& item : array) {
    if (!item.is_integer()) {
      throw error_at(origin, key + " must be a list of integers only");
    }
    list.push_back(item.as_integer()->get());
  }
  return list;
}

OptionValue convert(const toml::node& node, const Origin& origin, const std::string& key) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_array()) return convert_list(*v, origin, key);
  throw error_at(origin, key + (node.is_table() ? " is a table" : " is a date or a time") +
                             "; options are booleans, integers, floats, strings or lists of "
                             "integers");
}

RawTable convert_table(const toml::table& table, const std::string& label) {
  RawTable result;
  result.origin = file_origin(label, table.source());
  for (const auto& [key, node] : table) {
    const std::string name = printable(key.str());
    const Origin origin = file_origin(label, key.source());
    result.entries.push_back({name, convert(node, origin, name), origin});
  }
  // toml++ sorts by name; errors should come in the order of the file.
  std::stable_sort(result.entries.begin(), result.entries.end(),
                   [](const OptionSetting& a, const OptionSetting& b) {
                     return std::pair(a.origin.line, a.origin.column) <
                            std::pair(b.origin.line, b.origin.column);
                   });
  return result;
}

std::vector<Setting<std::string>> convert_includes(const toml::node& node, const Origin& origin) {
  std::vector<Setting<std::string>> result;
  const auto add = [&](const toml::node& item) {
    if (!item.is_string()) throw error_at(origin, "include must be a list of file names");
    result.push_back({item.as_string()->get(), origin});
  };
  if (const auto* array = node.as_array()) {
    for (const toml::node& item : *array) add(item);
  } else {
    add(node);
  }
  return result;
}

RawSection convert_section(const std::string& name, const toml::node& node, const Origin& origin,
                           const std::string& label) {
  RawSection section{name, false, {}};
  if (const auto* table = node.as_table()) {
    section.tables.push_back(convert_table(*table, label));
    if (section.tables[0].origin.line == 0) section.tables[0].origin = origin;
    return section;
  }
  const auto* array = node.as_array();
  if (!array || array->empty() || name == "cache") {
    throw error_at(origin, name + " must be a table: write [" + name + "]");
  }
  section.is_array = true;
  for (const toml::node& item : *array) {
    if (!item.is_table())
      throw error_at(origin, name + " must hold tables: write [[" + name + "]]");
    section.tables.push_back(convert_table(*item.as_table(), label));
  }
  return section;
}

void check_size(const std::string& text, const std::string& label) {
  if (text.size() > kMaxFileBytes) {
    throw input_error(label + ": larger than " + std::to_string(kMaxFileBytes / 1024) +
                      " KiB; a strategy is a few lines of TOML");
  }
  if (static_cast<size_t>(std::count(text.begin(), text.end(), '.')) > kMaxDots) {
    throw input_error(label + ": more than " + std::to_string(kMaxDots) +
                      " dots; tables this deep are not a strategy");
  }
}

toml::parse_result parse(const std::string& text, const std::string& label) {
  toml::parse_result result = toml::parse(std::string_view(text));
  if (!result) {
    const toml::parse_error& e = result.error();
    throw error_at(file_origin(label, e.source()), "not valid TOML: " + printable(e.description()));
  }
  return result;
}

}  // namespace

RawDocument read_toml(const std::string& text, const std::string& label) {
  check_size(text, label);
  const toml::parse_result parsed = parse(text, label);
  RawDocument document;
  for (const auto& [key, node] : parsed.table()) {
    const std::string name = printable(key.str());
    const Origin origin = file_origin(label, key.source());
    if (name == "include") {
      document.includes = convert_includes(node, origin);
      continue;
    }
    const auto& known = table_names();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::vector<std::string> candidates = known;
      candidates.push_back("include");
      std::string hint = did_you_mean(name, candidates);
      if (hint.empty() && !node.is_table()) {
        hint = did_you_mean(name, cache_key_names());
        if (!hint.empty()) hint += " below [cache]";
      }
      throw error_at(origin, std::string(node.is_table() ? "unknown table [" : "unknown key ") +
                                 name + (node.is_table() ? "]" : "") + hint);
    }
    document.sections.push_back(convert_section(name, node, origin, label));
  }
  return document;
}

OptionValue read_value(const std::string& text, const Origin& origin) {
  check_size(text, origin.text());
  const size_t first = text.find_first_not_of(" \t");
  const bool looks_structured =
      first != std::string::npos && std::string("[{\"'").find(text[first]) != std::string::npos;
  const bool one_line = text.find_first_of("\r\n") == std::string::npos;
  toml::parse_result parsed = toml::parse("value = " + text);
  if (parsed && one_line && parsed.table().size() == 1) {
    const toml::node& node = parsed.table().begin()->second;
    const bool is_date = node.is_date() || node.is_time() || node.is_date_time();
    if (!is_date) return convert(node, origin, "the value");
  }
  if (looks_structured && !parsed) {
    throw error_at(origin,
                   "the value is not valid TOML: " + printable(parsed.error().description()));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
  if (first == std::string::npos || std::any_of(text.begin(), text.end(), is_control)) {
    throw error_at(origin, "the value is empty or holds control characters; quote it as in TOML");
  }
  return text;
}

}  // namespace kvasir::config
