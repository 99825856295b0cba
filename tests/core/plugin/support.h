// A host, a registry over the test plugins, and shorthands for sections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/plugin/pipeline.h"
#include "core/plugin/registry.h"
#include "tests/support/error_of.h"

namespace kvasir::test {

inline std::string plugin_dir(const std::string& folder) {
  return std::string(KVASIR_BINARY_DIR) + "/test-plugins/" + folder;
}

struct LogLine {
  uint32_t level;
  std::string plugin, text;
};

// Services whose log can be read.
struct Host {
  Topology topology = Topology::synthetic("numa:1 core:2 pu:1");
  ThreadPool pool{topology, 2, false};
  std::vector<LogLine> log;
  HostServices services{pool,
                        [this](uint32_t level, const std::string& plugin, const std::string& text) {
                          log.push_back({level, plugin, text});
                        }};
};

// One level per folder, the first one first.
inline PluginSearch search(const std::vector<std::string>& folders) {
  PluginSearch result;
  for (const std::string& folder : folders) {
    result.levels.push_back({"level " + folder, {plugin_dir(folder)}});
  }
  return result;
}

inline Origin at(uint32_t line) { return {Origin::Source::kFile, "/dir/run.toml", line, 1}; }

inline PluginSection section(Kind kind, const std::string& plugin,
                             std::vector<OptionSetting> options = {}) {
  PluginSection result;
  result.kind = kind;
  result.plugin = {plugin, at(1)};
  result.options = std::move(options);
  return result;
}

inline PluginSection faulty(Kind kind, const std::string& plugin, const std::string& fault) {
  return section(kind, plugin, {{"fault", fault, at(2)}});
}

template <class T>
T make(PluginRegistry& registry, const HostServices& services, const PluginSection& s) {
  const OpenPlugin plugin = registry.open(s.kind, s.plugin.value);
  return T(plugin, services, ResolvedOptions(*plugin.desc, s));
}

inline void check_says(const std::string& text, const std::vector<std::string>& pieces) {
  INFO(text);
  for (const std::string& piece : pieces) {
    CAPTURE(piece);
    CHECK(text.find(piece) != std::string::npos);
  }
}

}  // namespace kvasir::test
