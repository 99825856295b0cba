// Opens one plugin file and checks everything it answers before anyone uses it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/entry.h>

#include <memory>
#include <string>
#include <vector>

#include "core/plugin/registry.h"

namespace kvasir {

// A plugin file in memory. Mapped until the process ends; shutdown() is called when the last
// LoadedPlugin of that file goes.
class LoadedPlugin {
 public:
  // `file` must be usable. Throws Error(kInput) with the message of describe().
  LoadedPlugin(const PluginFile& file, const kvasir_host& host);
  ~LoadedPlugin();
  LoadedPlugin(const LoadedPlugin&) = delete;
  LoadedPlugin& operator=(const LoadedPlugin&) = delete;

  const std::string& path() const { return path_; }
  const kvasir_plugin* table() const { return table_; }
  const std::vector<const kvasir_desc*>& descs() const { return descs_; }

 private:
  std::string path_;
  const kvasir_plugin* table_ = nullptr;
  std::vector<const kvasir_desc*> descs_;
};

const char* kind_name(uint32_t kind);           // "selector" …, "unknown kind"
std::string status_name(kvasir_status status);  // "KVASIR_ERR_IO" …, "status 42"
std::string err_text(const kvasir_err& err);    // one printable line, or that there is none

}  // namespace kvasir
