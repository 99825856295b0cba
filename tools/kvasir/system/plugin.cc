// kvasir plugin: every plugin file that is found and what is thought of it; one plugin in full.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "core/error.h"
#include "core/plugin/dtypes.h"
#include "core/plugin/loader.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

const char* name(PluginFile::Verdict verdict) {
  switch (verdict) {
    case PluginFile::Verdict::kUsable:
      return "usable";
    case PluginFile::Verdict::kShadowed:
      return "shadowed";
    default:
      return "refused";
  }
}

std::vector<std::string> kind_names(uint32_t kinds) {
  std::vector<std::string> names;
  for (uint32_t kind = KVASIR_KIND_SELECTOR; kind <= KVASIR_KIND_ATTENTION; ++kind)
    if (kinds & KVASIR_KIND_BIT(kind)) names.emplace_back(kind_name(kind));
  return names;
}

std::string abi_text(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

Json file_json(const PluginFile& f) {
  return {{"verdict", name(f.verdict)},
          {"kinds", kind_names(f.kinds)},
          {"ids", f.ids},
          {"version", f.version},
          {"abi", abi_text(f.abi_major, f.abi_minor)},
          {"required_abi", abi_text(f.abi_major, f.required_minor)},
          {"level", f.level},
          {"file", f.path},
          {"reason", f.reason}};
}

void list(const Options& options) {
  PluginHost host(options);
  const auto& files = host.registry().files();
  const PluginSearch search = plugin_search(options);
  Json report{{"abi", abi_text(KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR)}, {"searched", Json::array()}};
  for (const auto& level : search.levels)
    report["searched"].push_back({{"level", level.label}, {"directories", level.directories}});
  report["files"] = Json::array();
  for (const PluginFile& f : files) report["files"].push_back(file_json(f));
  if (options.json) return print_json(report);
  Table table({"verdict", "kind", "ids", "version", "abi", "level", "file"});
  for (const PluginFile& f : files)
    table.add({name(f.verdict), join(kind_names(f.kinds), ","), join(f.ids, ","), f.version,
               abi_text(f.abi_major, f.abi_minor), f.level, f.path});
  std::fputs(table.text().c_str(), stdout);
  for (const PluginFile& f : files)
    if (!f.reason.empty()) std::printf("\n%s: %s\n", f.path.c_str(), f.reason.c_str());
  if (!files.empty()) return;
  std::printf("no plugin files; looked in:\n");
  for (const auto& level : search.levels)
    for (const std::string& directory : level.directories)
      std::printf("  %s (%s)\n", directory.c_str(), level.label.c_str());
}

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
                                         {KVASIR_NEED_TOKEN_ROWS, "token_rows"},
                                         {KVASIR_NEED_DISTANCE, "distance"},
                                         {KVASIR_NEED_CONTRIBUTION, "contribution"}}};
constexpr std::array<Bit, 7> kProvides = {{{KVASIR_PROVIDE_SCORES, "scores"},
                                           {KVASIR_PROVIDE_MASS, "mass"},
                                           {KVASIR_PROVIDE_LOG_WEIGHT, "log_weight"},
                                           {KVASIR_PROVIDE_HEAD_LOG_WEIGHT, "head_log_weight"},
                                           {KVASIR_PROVIDE_TOKEN_ROWS, "token_rows"},
                                           {KVASIR_PROVIDE_DISTANCE, "distance"},
                                           {KVASIR_PROVIDE_STABLE_LEASES, "stable_leases"}}};
constexpr std::array<Bit, 3> kCaps = {{{KVASIR_CAP_OWN_THREADS, "own_threads"},
                                       {KVASIR_CAP_OPAQUE_STATE, "opaque_state"},
                                       {KVASIR_CAP_HISTORY_STATE, "history_state"}}};
template <size_t N>
std::vector<std::string> names(uint64_t bits, const std::array<Bit, N>& table) {
  std::vector<std::string> out;
  for (const Bit& row : table) {
    if (bits & row.bit) out.emplace_back(row.name);
    bits &= ~row.bit;
  }
  if (bits) out.push_back(format("unknown bits 0x%llx", static_cast<unsigned long long>(bits)));
  return out;
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

Json option_json(const kvasir_option_schema& option) {
  return {{"key", option.key},
          {"type", type_text(option.type)},
          {"default", default_text(option)},
          {"range", range_text(option)},
          {"unit", option.unit ? option.unit : ""},
          {"aliases", alias_names(option)},
          {"deprecated", (option.flags & KVASIR_OPTION_DEPRECATED) != 0},
          {"group", KVASIR_HAS(&option, kvasir_option_schema, group) ? option.group : ""},
          {"with", KVASIR_HAS(&option, kvasir_option_schema, with) ? option.with : ""},
          {"help", option.help ? option.help : ""}};
}

constexpr std::array<Bit, 3> kMemory = {{{KVASIR_MEM_BIT(KVASIR_MEM_HOST), "host"},
                                         {KVASIR_MEM_BIT(KVASIR_MEM_PINNED), "pinned"},
                                         {KVASIR_MEM_BIT(KVASIR_MEM_DEVICE), "device"}}};

// Where what it reads and writes may lie; a mask that is absent or empty says host memory.
std::vector<std::string> memory_names(uint32_t mask) {
  return names(mask ? mask : KVASIR_MEM_BIT(KVASIR_MEM_HOST), kMemory);
}

Json desc_json(const kvasir_desc& d, const std::string& file) {
  const auto text = [](const char* s) { return s ? std::string(s) : std::string(); };
  const uint32_t read = KVASIR_HAS(&d, kvasir_desc, mem_kinds_read) ? d.mem_kinds_read : 0;
  const uint32_t written = KVASIR_HAS(&d, kvasir_desc, mem_kinds_write) ? d.mem_kinds_write : 0;
  Json out{{"id", d.id},
           {"kind", kind_name(d.kind)},
           {"version", text(d.version)},
           {"name", text(d.name)},
           {"summary", text(d.summary)},
           {"vendor", text(d.vendor)},
           {"license", text(d.license)},
           {"url", text(d.url)},
           {"file", file},
           {"caps", names(d.caps, kCaps)},
           {"needs", names(d.needs, kNeeds)},
           {"provides", names(d.provides, kProvides)},
           {"dtypes", d.dtypes ? dtype_names(d.dtypes) : std::vector<std::string>{"any"}},
           {"memory_read", memory_names(read)},
           {"memory_written", memory_names(written)},
           {"options", Json::array()}};
  for (const auto* option : checked_schema(d)) out["options"].push_back(option_json(*option));
  return out;
}

// " (one of "budget")", " (with heavy_ratio)".
std::string group_text(const Json& option) {
  const auto group = option["group"].get<std::string>(), with = option["with"].get<std::string>();
  std::string text = group.empty() ? "" : "one of \"" + group + "\"";
  if (!with.empty()) text += (text.empty() ? "with " : ", with ") + with;
  return text.empty() ? "" : " (" + text + ")";
}

void print_desc(const Json& d) {
  Table facts({"id", d["id"]});
  for (const auto& [key, value] : d.items()) {
    if (key == "id" || key == "options" || value.empty() || value == "") continue;
    facts.add({key, value.is_array() ? join(value.get<std::vector<std::string>>(), ", ")
                                     : value.get<std::string>()});
  }
  std::fputs(facts.text().c_str(), stdout);
  if (d["options"].empty()) return std::puts("no options"), void();
  Table options({"option", "type", "default", "range", "unit", "aliases", "help"}, {2});
  for (const Json& o : d["options"])
    options.add({o["key"], o["type"], o["default"], o["range"], o["unit"],
                 join(o["aliases"].get<std::vector<std::string>>(), ", "),
                 (o["deprecated"].get<bool>() ? "deprecated: " : "") +
                     o["help"].get<std::string>() + group_text(o)});
  std::printf("\n%s", options.text().c_str());
}

// A file may hold several plugins; an id names one.
void info(const Options& options, const std::string& what) {
  PluginHost host(options);
  auto found = Json::array();
  if (what.find('/') == std::string::npos) {
    const OpenPlugin plugin = host.registry().open_any(what);
    found.push_back(desc_json(*plugin.desc, plugin.path));
  } else {
    const PluginFile file = inspect_plugin_file(what);
    if (file.verdict != PluginFile::Verdict::kUsable) throw input_error(describe(file));
    const LoadedPlugin loaded(file, *host.services().host());
    for (const kvasir_desc* desc : loaded.descs()) found.push_back(desc_json(*desc, what));
  }
  if (options.json) return print_json({{"plugins", found}});
  for (size_t i = 0; i < found.size(); ++i) {
    if (i) std::puts("");
    print_desc(found[i]);
  }
}

void add_flags(CLI::App& command, Options& o) {
  command.add_option("--plugin-dir", o.plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  command.add_option("--log-level", o.log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  command.add_flag("--json", o.json, "One JSON document on stdout, nothing else there");
}

}  // namespace

void add_plugin(CLI::App& app) {
  auto* plugin =
      app.add_subcommand("plugin", "Which plugins there are, and what one of them takes");
  plugin->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto* listed = plugin->add_subcommand("list", "Every plugin file found, with a verdict");
  add_flags(*listed, *options);
  listed->callback([=] { list(*options); });
  auto what = std::make_shared<std::string>();
  auto* shown = plugin->add_subcommand("info", "One plugin: what it needs, provides and takes");
  add_flags(*shown, *options);
  shown->add_option("plugin", *what, "Id, or path of a file")->required();
  shown->callback([=] { info(*options, *what); });
}

}  // namespace kvasir::tool
