// See plugin_info.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/system/plugin_info.h"

#include <array>

#include "core/plugin/dtypes.h"
#include "core/plugin/loader.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

struct Bit {
  uint64_t bit;
  const char* name;
};
constexpr std::array<Bit, 10> kNeeds = {{{KVASIR_NEED_SCORES, "scores"},
                                         {KVASIR_NEED_MASS, "mass"},
                                         {KVASIR_NEED_KEYS, "keys"},
                                         {KVASIR_NEED_INPUT, "input"},
                                         {KVASIR_NEED_UNROTATED_K, "unrotated_k"},
                                         {KVASIR_NEED_LOG_WEIGHT, "log_weight"},
                                         {KVASIR_NEED_HEAD_LOG_WEIGHT, "head_log_weight"},
                                         {KVASIR_NEED_TOKEN_ITEMS, "token_items"},
                                         {KVASIR_NEED_DISTANCE, "distance"},
                                         {KVASIR_NEED_CONTRIBUTION, "contribution"}}};
constexpr std::array<Bit, 9> kProvides = {{{KVASIR_PROVIDE_SCORES, "scores"},
                                           {KVASIR_PROVIDE_MASS, "mass"},
                                           {KVASIR_PROVIDE_LOG_WEIGHT, "log_weight"},
                                           {KVASIR_PROVIDE_HEAD_LOG_WEIGHT, "head_log_weight"},
                                           {KVASIR_PROVIDE_TOKEN_ITEMS, "token_items"},
                                           {KVASIR_PROVIDE_DISTANCE, "distance"},
                                           {KVASIR_PROVIDE_STABLE_LEASES, "stable_leases"},
                                           {KVASIR_PROVIDE_FETCH, "fetch"},
                                           {KVASIR_PROVIDE_SUMMED_SCORES, "summed_scores"}}};
constexpr std::array<Bit, 3> kCaps = {{{KVASIR_CAP_OWN_THREADS, "own_threads"},
                                       {KVASIR_CAP_OPAQUE_STATE, "opaque_state"},
                                       {KVASIR_CAP_HISTORY_STATE, "history_state"}}};
template <size_t N>
std::vector<std::string> names(uint64_t bits, const std::array<Bit, N>& table) {
  std::vector<std::string> out;
  for (const Bit& known : table) {
    if (bits & known.bit) out.emplace_back(known.name);
    bits &= ~known.bit;
  }
  if (bits) out.push_back(format("unknown bits 0x%llx", static_cast<unsigned long long>(bits)));
  return out;
}

constexpr std::array<Bit, 3> kMemory = {{{KVASIR_MEM_BIT(KVASIR_MEM_HOST), "host"},
                                         {KVASIR_MEM_BIT(KVASIR_MEM_PINNED), "pinned"},
                                         {KVASIR_MEM_BIT(KVASIR_MEM_DEVICE), "device"}}};

// The kinds of memory in a mask. An empty mask says host memory.
std::vector<std::string> memory_names(uint32_t mask) {
  return names(mask ? mask : KVASIR_MEM_BIT(KVASIR_MEM_HOST), kMemory);
}

std::string bound_text(const kvasir_option_schema& option, const kvasir_value& bound) {
  if (bound.type == 0) return "";
  if (option.type == KVASIR_OPTION_FLOAT) return format("%g", bound.f);
  return std::to_string(bound.i);
}

std::string range_text(const kvasir_option_schema& option) {
  if (option.type == KVASIR_OPTION_ENUM) {
    std::vector<std::string> values;
    for (uint32_t i = 0; i < option.n_enum; ++i) values.emplace_back(option.enum_names[i]);
    return join(values, "|");
  }
  const std::string low = bound_text(option, option.min), high = bound_text(option, option.max);
  if (low.empty() && high.empty()) return "";
  return low + ".." + high;
}

std::string default_text(const kvasir_option_schema& option) {
  if (option.flags & KVASIR_OPTION_REQUIRED) return "required";
  if (option.flags & KVASIR_OPTION_OPTIONAL) return "not set";
  kvasir_value value = option.def;
  value.type = option.type;
  return option_value_text(option, value);
}

const char* type_text(uint32_t type) {
  static constexpr std::array<const char*, 9> kNames = {
      "", "bool", "integer", "float", "string", "enum", "bytes", "path", "integer list"};
  return type < kNames.size() ? kNames[type] : "unknown";
}

std::string text_or_empty(const char* text) { return text ? text : ""; }

PluginOption option_info(const kvasir_option_schema& option) {
  PluginOption out;
  out.key = option.key;
  out.type = type_text(option.type);
  out.value = default_text(option);
  out.range = range_text(option);
  out.unit = text_or_empty(option.unit);
  out.aliases = alias_names(option);
  out.is_deprecated = (option.flags & KVASIR_OPTION_DEPRECATED) != 0;
  if (KVASIR_HAS(&option, kvasir_option_schema, group)) out.group = text_or_empty(option.group);
  if (KVASIR_HAS(&option, kvasir_option_schema, with)) out.with = text_or_empty(option.with);
  out.help = text_or_empty(option.help);
  return out;
}

// " (one of "budget")", " (with heavy_ratio)".
std::string group_text(const PluginOption& option) {
  std::string text = option.group.empty() ? "" : "one of \"" + option.group + "\"";
  if (!option.with.empty()) text += (text.empty() ? "with " : ", with ") + option.with;
  return text.empty() ? "" : " (" + text + ")";
}

Json option_json(const PluginOption& option) {
  return {{"key", option.key},
          {"type", option.type},
          {"default", option.value},
          {"range", option.range},
          {"unit", option.unit},
          {"aliases", option.aliases},
          {"deprecated", option.is_deprecated},
          {"group", option.group},
          {"with", option.with},
          {"help", option.help}};
}

std::string facts_text(const PluginInfo& info) {
  Table facts({"id", info.id});
  const auto add = [&](const char* fact, const std::string& value) {
    if (!value.empty()) facts.add({fact, value});
  };
  add("kind", info.kind);
  add("version", info.version);
  add("name", info.name);
  add("summary", info.summary);
  add("vendor", info.vendor);
  add("license", info.license);
  add("url", info.url);
  add("file", info.file);
  add("caps", join(info.caps, ", "));
  add("needs", join(info.needs, ", "));
  add("provides", join(info.provides, ", "));
  add("dtypes", join(info.dtypes, ", "));
  add("memory_read", join(info.memory_read, ", "));
  add("memory_written", join(info.memory_written, ", "));
  return facts.text();
}

}  // namespace

std::vector<std::string> kind_names(uint32_t kinds) {
  std::vector<std::string> names;
  for (uint32_t kind = KVASIR_KIND_SELECTOR; kind <= KVASIR_KIND_ATTENTION; ++kind)
    if (kinds & KVASIR_KIND_BIT(kind)) names.emplace_back(kind_name(kind));
  return names;
}

PluginInfo plugin_info(const kvasir_desc& d, const std::string& file) {
  PluginInfo out;
  out.id = d.id;
  out.kind = kind_name(d.kind);
  out.version = text_or_empty(d.version);
  out.name = text_or_empty(d.name);
  out.summary = text_or_empty(d.summary);
  out.vendor = text_or_empty(d.vendor);
  out.license = text_or_empty(d.license);
  out.url = text_or_empty(d.url);
  out.file = file;
  out.caps = names(d.caps, kCaps);
  out.needs = names(d.needs, kNeeds);
  out.provides = names(d.provides, kProvides);
  out.dtypes = d.dtypes ? dtype_names(d.dtypes) : std::vector<std::string>{"any"};
  out.memory_read =
      memory_names(KVASIR_HAS(&d, kvasir_desc, mem_kinds_read) ? d.mem_kinds_read : 0);
  out.memory_written =
      memory_names(KVASIR_HAS(&d, kvasir_desc, mem_kinds_write) ? d.mem_kinds_write : 0);
  for (const auto* option : checked_schema(d)) out.options.push_back(option_info(*option));
  return out;
}

Json to_json(const PluginInfo& info) {
  Json out{{"id", info.id},
           {"kind", info.kind},
           {"version", info.version},
           {"name", info.name},
           {"summary", info.summary},
           {"vendor", info.vendor},
           {"license", info.license},
           {"url", info.url},
           {"file", info.file},
           {"caps", info.caps},
           {"needs", info.needs},
           {"provides", info.provides},
           {"dtypes", info.dtypes},
           {"memory_read", info.memory_read},
           {"memory_written", info.memory_written},
           {"options", Json::array()}};
  for (const PluginOption& option : info.options) out["options"].push_back(option_json(option));
  return out;
}

std::string to_text(const PluginInfo& info) {
  if (info.options.empty()) return facts_text(info) + "no options\n";
  Table options({"option", "type", "default", "range", "unit", "aliases", "help"}, {2});
  for (const PluginOption& o : info.options)
    options.add({o.key, o.type, o.value, o.range, o.unit, join(o.aliases, ", "),
                 (o.is_deprecated ? "deprecated: " : "") + o.help + group_text(o)});
  return facts_text(info) + "\n" + options.text();
}

}  // namespace kvasir::tool
