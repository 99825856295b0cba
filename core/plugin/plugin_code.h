// Where the code of plugins lies in memory: it names the plugin when a thread of its own crashes,
// which has no breadcrumb.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace kvasir {

struct PluginCode {
  uintptr_t begin = 0, end = 0;
  const char* plugin = nullptr;  // the file's first id; never freed, as the code is never unmapped
  const char* path = nullptr;
};

// `entry` lies in the file's code.
void remember_plugin_code(const void* entry, const std::string& plugin, const std::string& path);
// Null: the address lies in no plugin. A signal handler may call it.
const PluginCode* plugin_code_at(uintptr_t address);

}  // namespace kvasir
