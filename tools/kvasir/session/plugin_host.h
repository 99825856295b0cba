// What plugins need besides a model: threads, a log, the plugin files that were found.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/pipeline.h"
#include "core/plugin/watchdog.h"
#include "tools/kvasir/cli/options.h"

namespace kvasir::tool {

class PluginHost {
 public:
  // slow_call_seconds: CacheConfig's. Ends the process with 130 when a plugin call goes on for
  // three seconds after Ctrl-C.
  explicit PluginHost(const Options& options, uint32_t slow_call_seconds = 10);
  const Topology& topology() const { return topology_; }
  ThreadPool& pool() { return pool_; }
  const ThreadPool& pool() const { return pool_; }
  HostServices& services() { return services_; }
  PluginRegistry& registry() { return registry_; }
  // What plugins logged at level info so far, shown or not: id and text.
  const std::vector<std::pair<std::string, std::string>>& said() const { return said_; }

 private:
  Topology topology_;
  ThreadPool pool_;
  std::vector<std::pair<std::string, std::string>> said_;
  // A command builds a strategy to check it, to plan it and to run it: equal lines (debug apart)
  // are shown once.
  std::set<std::pair<std::string, std::string>> shown_;
  HostServices services_;
  PluginRegistry registry_;
  Watchdog watchdog_;
};

// Log lines of plugins and core on stderr, at or above the level.
HostServices::Log stderr_log(const std::string& level);

}  // namespace kvasir::tool
