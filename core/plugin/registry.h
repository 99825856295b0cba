// Finds plugin files, judges them by their note without running them, opens the one that is named.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <memory>
#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "core/plugin/host.h"

namespace kvasir {

// Levels in order of precedence: explicit path > --plugin-dir > KVASIR_PLUGIN_PATH > install
// directory. Never the current directory, never a bare file name.
struct PluginSearch {
  struct Level {
    std::string label;  // "--plugin-dir", "KVASIR_PLUGIN_PATH", "install"
    std::vector<std::string> directories;
  };
  std::vector<Level> levels;
};

struct PluginFile {  // one .so and what is thought of it
  enum class Verdict { kUsable, kShadowed, kRefused };
  std::string path, level, version;
  std::vector<std::string> ids;
  uint32_t kinds = 0;  // KVASIR_KIND_BIT set
  uint32_t abi_major = 0, abi_minor = 0, required_minor = 0;
  Verdict verdict = Verdict::kRefused;
  std::string reason;  // why refused or shadowed by what; empty when usable
};

// Reads the note only. verdict is kUsable or kRefused.
PluginFile inspect_plugin_file(const std::string& path);

// An opened plugin and the index of one id in it. Never unloaded.
struct OpenPlugin {
  const kvasir_plugin* table = nullptr;
  const kvasir_desc* desc = nullptr;
  uint32_t index = 0;
  std::string path;
};

class PluginRegistry {
 public:
  // Scans all levels; a file that is refused is remembered, not fatal. Two files with one id on one
  // level: Error naming both; on a lower level: shadowed.
  PluginRegistry(const PluginSearch& search, const HostServices& services);

  const std::vector<PluginFile>& files() const { return files_; }
  // reference: id, bare id ("minmax" finds one whose last component is that, ours first), or a path
  // with a '/' ending in .so; `path` pins the file. Error: not found (lists where it looked and the
  // nearest id), not ELF, no note, no symbol, wrong major, needs newer minor, wrong kind.
  OpenPlugin open(Kind kind, const std::string& reference, const std::string& path = "");
  // For `plugin list|info`: opens by id whatever its kind.
  OpenPlugin open_any(const std::string& reference);
  std::vector<std::string> ids(Kind kind) const;

 private:
  const HostServices& services_;
  std::vector<PluginFile> files_;
  struct Loaded;
  std::vector<std::shared_ptr<Loaded>> loaded_;
};

// Typed, defaulted, checked: what create() gets. Error names file:line:column, key, nearest key,
// range or enum. Strings live as long as the object.
class ResolvedOptions {
 public:
  ResolvedOptions(const kvasir_desc& desc, const PluginSection& section);
  const std::vector<kvasir_option>& values() const { return values_; }
  // "budget_tokens = 12288 (quest.toml:14:1)" per option, aliases and conversions said.
  struct Explained {
    std::string key, value, origin, note;
  };
  const std::vector<Explained>& explained() const { return explained_; }

 private:
  std::vector<kvasir_option> values_;
  std::vector<Explained> explained_;
  std::vector<std::shared_ptr<const void>> storage_;
};

}  // namespace kvasir
