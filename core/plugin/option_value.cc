// One option: from what the user wrote to what create() gets.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/config/raw.h"
#include "core/plugin/option_schema.h"

namespace kvasir {
namespace {

Error fail(const OptionSetting& setting, const std::string& what) {
  return config::error_at(setting.origin, setting.key + " " + what);
}

Error wrong_type(const kvasir_option_schema& o, const OptionSetting& setting) {
  std::string text = std::string("must be ") + option_type_name(o.type) + ", not " +
                     config::type_name(setting.value) + " (" + config::value_text(setting.value) +
                     ")";
  if (o.type == KVASIR_OPTION_STRING && setting.origin.source != Origin::Source::kFile) {
    text += "; quote it to make it a string";
  }
  return fail(setting, text);
}

std::string range_text(const kvasir_option_schema& o) {
  const auto bound = [&](const kvasir_value& v) {
    if (v.type == 0) return std::string();
    return o.type == KVASIR_OPTION_FLOAT ? config::value_text(v.f) : std::to_string(v.i);
  };
  return bound(o.min) + ".." + bound(o.max) + (o.unit ? std::string(" ") + o.unit : "");
}

void check_integer(const kvasir_option_schema& o, const OptionSetting& setting, int64_t value) {
  if ((o.min.type && value < o.min.i) || (o.max.type && value > o.max.i)) {
    throw fail(setting, "= " + std::to_string(value) + " is out of range " + range_text(o));
  }
}

void read_bool(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value) {
  const auto* b = std::get_if<bool>(&setting.value);
  if (!b) throw wrong_type(o, setting);
  value.i = *b ? 1 : 0;
}

void read_int(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value) {
  const auto* i = std::get_if<int64_t>(&setting.value);
  if (!i) throw wrong_type(o, setting);
  check_integer(o, setting, *i);
  value.i = *i;
}

void read_float(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value) {
  if (const auto* i = std::get_if<int64_t>(&setting.value)) {
    value.f = static_cast<double>(*i);
  } else if (const auto* f = std::get_if<double>(&setting.value)) {
    value.f = *f;
  } else {
    throw wrong_type(o, setting);
  }
  const bool is_out = (o.min.type && value.f < o.min.f) || (o.max.type && value.f > o.max.f);
  if (!std::isfinite(value.f) || is_out) {
    throw fail(setting, "= " + config::value_text(value.f) +
                            (is_out ? " is out of range " + range_text(o) : " is not finite"));
  }
}

void read_enum(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value) {
  const auto* s = std::get_if<std::string>(&setting.value);
  if (!s) throw wrong_type(o, setting);
  std::vector<std::string> names;
  std::string listed;
  for (uint32_t i = 0; i < o.n_enum; ++i) {
    if (*s == o.enum_names[i]) {
      value.i = i;
      return;
    }
    names.emplace_back(o.enum_names[i]);
    listed += (i ? ", \"" : "\"") + names.back() + "\"";
  }
  throw fail(setting, "= " + config::value_text(setting.value) + " is not one of " + listed +
                          config::did_you_mean(*s, names));
}

void read_bytes(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value,
                std::string& note) {
  if (const auto* i = std::get_if<int64_t>(&setting.value)) {
    value.i = *i;
  } else if (const auto* s = std::get_if<std::string>(&setting.value)) {
    if (!parse_bytes(*s, value.i)) {
      throw fail(setting, "= " + config::value_text(setting.value) +
                              " is no size: write bytes, or \"512MiB\", \"8GiB\", \"1.5TB\"");
    }
    note = config::value_text(setting.value) + " = " + std::to_string(value.i) + " bytes";
  } else {
    throw wrong_type(o, setting);
  }
  if (value.i < 0) throw fail(setting, "= " + std::to_string(value.i) + " is negative");
  check_integer(o, setting, value.i);
}

// A path may be an address where a plugin takes one: "redis://host". What else it may be is no path
// that a user writes.
bool is_address(const std::string& text) {
  const size_t at = text.find("://");
  return at != text.npos && at > 0 && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz+") == at;
}

void read_string(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value,
                 std::vector<std::shared_ptr<const void>>& keep, std::string& note) {
  const auto* s = std::get_if<std::string>(&setting.value);
  if (!s) throw wrong_type(o, setting);
  if (s->find('\0') != std::string::npos) throw fail(setting, "holds a zero byte");
  std::string text = *s;
  if (o.type == KVASIR_OPTION_PATH && !is_address(text)) {
    if (text.empty()) throw fail(setting, "must be a path that is not empty");
    std::filesystem::path path = text;
    if (path.is_relative() && setting.origin.source == Origin::Source::kFile) {
      path = std::filesystem::path(setting.origin.name).parent_path() / path;
    }
    path = std::filesystem::absolute(path).lexically_normal();
    if (path.string() != text) note = "from " + config::value_text(text);
    text = path.string();
  }
  const auto kept = std::make_shared<const std::string>(std::move(text));
  value.s = kept->c_str();
  keep.push_back(kept);
}

void read_list(const kvasir_option_schema& o, const OptionSetting& setting, kvasir_value& value,
               std::vector<std::shared_ptr<const void>>& keep) {
  const auto* list = std::get_if<std::vector<int64_t>>(&setting.value);
  if (!list) throw wrong_type(o, setting);
  for (const int64_t item : *list) check_integer(o, setting, item);
  const auto kept = std::make_shared<const std::vector<int64_t>>(*list);
  value.list = kept->data();
  value.n = static_cast<uint32_t>(kept->size());
  keep.push_back(kept);
}

}  // namespace

const char* option_type_name(uint32_t type) {
  static constexpr std::array<const char*, 9> kNames = {
      "unknown",
      "true or false",
      "an integer",
      "a number",
      "a string",
      "a string (one of its names)",
      "a number of bytes or a string like \"8GiB\"",
      "a path (a string)",
      "a list of integers"};
  return kNames[type < kNames.size() ? type : 0];
}

bool parse_bytes(const std::string& text, int64_t& bytes) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc() || !(number >= 0)) return false;
  std::string unit(parsed.ptr, end);
  if (!unit.empty() && unit[0] == ' ') unit.erase(0, 1);
  struct Unit {
    const char* name;
    double factor;
  };
  static constexpr double kKi = 1024.0;
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"B", 1},
                                    {"KiB", kKi},
                                    {"MiB", kKi * kKi},
                                    {"GiB", kKi * kKi * kKi},
                                    {"TiB", kKi * kKi * kKi * kKi},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12}};
  for (const Unit& u : kUnits) {
    if (unit != u.name) continue;
    const double value = number * u.factor;
    constexpr double kLimit = 9007199254740992.0;  // 2^53: whole bytes stay exact
    if (!(value <= kLimit)) return false;
    bytes = static_cast<int64_t>(value);
    return true;
  }
  return false;
}

kvasir_value convert_option(const kvasir_option_schema& option, const OptionSetting& setting,
                            std::vector<std::shared_ptr<const void>>& keep, std::string& note) {
  kvasir_value value{};
  value.type = option.type;
  switch (option.type) {
    case KVASIR_OPTION_BOOL:
      read_bool(option, setting, value);
      break;
    case KVASIR_OPTION_INT:
      read_int(option, setting, value);
      break;
    case KVASIR_OPTION_FLOAT:
      read_float(option, setting, value);
      break;
    case KVASIR_OPTION_ENUM:
      read_enum(option, setting, value);
      break;
    case KVASIR_OPTION_BYTES:
      read_bytes(option, setting, value, note);
      break;
    case KVASIR_OPTION_INT_LIST:
      read_list(option, setting, value, keep);
      break;
    default:
      read_string(option, setting, value, keep, note);
  }
  return value;
}

std::string option_value_text(const kvasir_option_schema& option, const kvasir_value& value) {
  switch (option.type) {
    case KVASIR_OPTION_BOOL:
      return config::value_text(value.i != 0);
    case KVASIR_OPTION_FLOAT:
      return config::value_text(value.f);
    case KVASIR_OPTION_ENUM:
      return config::value_text(std::string(option.enum_names[value.i]));
    case KVASIR_OPTION_STRING:
    case KVASIR_OPTION_PATH:
      return config::value_text(std::string(value.s));
    case KVASIR_OPTION_INT_LIST:
      return config::value_text(std::vector<int64_t>(value.list, value.list + value.n));
    default:
      return config::value_text(value.i);
  }
}

}  // namespace kvasir
