// One plugin as its description says: what it needs, provides and takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct PluginOption {
  std::string key, type;
  std::string value;  // the default, or "required", "not set"
  std::string range, unit;
  std::vector<std::string> aliases;
  bool is_deprecated = false;
  std::string group;  // options of one group exclude each other
  std::string with;   // the option it goes with
  std::string help;
};

struct PluginInfo {
  std::string id, kind, version, name, summary, vendor, license, url, file;
  std::vector<std::string> caps, needs, provides, dtypes;
  std::vector<std::string> memory_read, memory_written;  // kinds of memory
  std::vector<PluginOption> options;
};

PluginInfo plugin_info(const kvasir_desc& desc, const std::string& file);
std::vector<std::string> kind_names(uint32_t kinds);  // of a KVASIR_KIND_BIT set

Json to_json(const PluginInfo& info);
std::string to_text(const PluginInfo& info);

}  // namespace kvasir::tool
