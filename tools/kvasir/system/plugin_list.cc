// See plugin_list.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/system/plugin_list.h"

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/system/plugin_info.h"

namespace kvasir::tool {
namespace {

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

}  // namespace

Json to_json(const PluginList& list) {
  Json out{{"abi", abi_text(KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR)},
           {"searched", Json::array()},
           {"files", Json::array()}};
  for (const auto& level : list.search.levels)
    out["searched"].push_back({{"level", level.label}, {"directories", level.directories}});
  for (const PluginFile& f : list.files) out["files"].push_back(file_json(f));
  return out;
}

std::string to_text(const PluginList& list) {
  Table table({"verdict", "kind", "ids", "version", "abi", "level", "file"});
  for (const PluginFile& f : list.files)
    table.add({name(f.verdict), join(kind_names(f.kinds), ","), join(f.ids, ","), f.version,
               abi_text(f.abi_major, f.abi_minor), f.level, f.path});
  std::string out = table.text();
  for (const PluginFile& f : list.files)
    if (!f.reason.empty()) out += "\n" + f.path + ": " + f.reason + "\n";
  if (!list.files.empty()) return out;
  out += "no plugin files; looked in:\n";
  for (const auto& level : list.search.levels)
    for (const std::string& directory : level.directories)
      out += "  " + directory + " (" + level.label + ")\n";
  return out;
}

}  // namespace kvasir::tool
