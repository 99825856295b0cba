// Every plugin file that is found, with the verdict on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/plugin/registry.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct PluginList {
  PluginSearch search;
  std::vector<PluginFile> files;
};

Json to_json(const PluginList& list);
std::string to_text(const PluginList& list);

}  // namespace kvasir::tool
