// Finds plugin files, judges them by their note without running them, opens the one that is named.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "core/error.h"
#include "core/plugin/host.h"

namespace kvasir {

class LoadedPlugin;

// Levels in order of precedence: explicit path > --plugin-dir > KVASIR_PLUGIN_PATH > install
// directory. Never the current directory, never a bare file name.
struct PluginFile;
struct PluginSearch {
  struct Level {
    std::string label;  // "--plugin-dir", "KVASIR_PLUGIN_PATH", "install"
    std::vector<std::string> directories;
  };
  std::vector<Level> levels;
  bool allow_drafts = false;  // load plugins that need a draft extension
  // Why the file at a path is refused although its note is good, "" when it is not; may be empty.
  std::function<std::string(const std::string& path)> why_blocked;
  // Asked before a file is loaded that this process has not loaded yet: why it must not be, or "".
  std::function<std::string(const PluginFile& file)> first_contact;
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

uint32_t host_cpu_features();  // KVASIR_CPU_* set of this machine

struct InspectRules {
  uint32_t cpu_features = host_cpu_features();
  bool allow_drafts = false;
};

// Reads the note only. verdict is kUsable or kRefused.
PluginFile inspect_plugin_file(const std::string& path, const InspectRules& rules = {});
// "<path> (<ids> <version>): <reason>", the whole message about a file.
std::string describe(const PluginFile& file);

// An opened plugin and the index of one id in it. Never unloaded.
struct OpenPlugin {
  const kvasir_plugin* table = nullptr;
  const kvasir_desc* desc = nullptr;
  uint32_t index = 0;
  std::string path;
  std::shared_ptr<const void> keep;  // shutdown() waits for the last of these
};

class PluginRegistry {
 public:
  // Scans all levels; a file that is refused is remembered, not fatal. Two files with one id on one
  // level are both refused (an Error naming both when that id is opened); a file on a lower level
  // is shadowed.
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
  PluginFile inspect(const std::string& path) const;
  PluginFile find(const std::string& reference, const std::string& path, uint32_t kinds,
                  std::string& id) const;
  const PluginFile* find_id(const std::string& id) const;
  const PluginFile* find_bare(const std::string& name, uint32_t kinds, std::string& id) const;
  OpenPlugin open_as(uint32_t kinds, const std::string& reference, const std::string& path);
  // The thread is as before afterwards, whatever the file's code does to it.
  std::shared_ptr<const LoadedPlugin> load(const PluginFile& file) const;
  Error not_found(const std::string& reference, uint32_t kinds) const;
  void scan(const PluginSearch::Level& level);
  void mark_duplicates();
  void mark_shadowed();

  const HostServices& services_;
  InspectRules rules_;
  std::function<std::string(const std::string& path)> why_blocked_;
  std::function<std::string(const PluginFile& file)> first_contact_;
  std::vector<std::string> searched_;   // "/a (--plugin-dir)", for messages
  std::vector<PluginFile> files_;       // by level, then directory, then name
  std::vector<std::string> ambiguous_;  // paths of files that share an id on their level
  std::vector<std::shared_ptr<const LoadedPlugin>> loaded_;
};

// Typed, defaulted, checked: what create() gets. Error names file:line:column, key, nearest key,
// range or enum. Strings live as long as the object.
class ResolvedOptions {
 public:
  ResolvedOptions(const kvasir_desc& desc, const PluginSection& section);
  const std::vector<kvasir_option>& values() const { return values_; }
  // "budget_tokens = 12288 (quest.toml:14:1)" per option, aliases and conversions said.
  // What a file says for its plugin is set aside, and noted, where the environment or the command
  // line chose another that has no such option.
  static constexpr const char* kSetAside = "set aside";
  // Of alternatives: the user set this one, and another one decides.
  static constexpr const char* kOverruled = "overruled";
  static constexpr const char* kNotSet = "not set";
  struct Explained {
    std::string key, value, origin, note;
  };
  const std::vector<Explained>& explained() const { return explained_; }
  bool names_files() const { return names_files_; }  // the user set an option of type path

 private:
  void take(const kvasir_desc& desc, const PluginSection& section,
            const kvasir_option_schema& option, const OptionSetting* setting,
            const std::string& note);
  std::vector<kvasir_option> values_;
  std::vector<Explained> explained_;
  bool names_files_ = false;
  std::vector<std::shared_ptr<const void>> storage_;
};

}  // namespace kvasir
