// See arms.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/arms.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>

#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {

void add_arm_flags(CLI::App& app, Options& options, std::vector<std::string>& strategies) {
  app.add_option("-s,--strategy", strategies, "Strategy file or preset; once per strategy")
      ->allow_extra_args(false);
  app.add_option("--set", options.set, "Override a key in all of them")->allow_extra_args(false);
  app.add_option("--plugin-dir", options.plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  add_check_plugins(app, options.check_plugins);
}

void fit_control(Options& options, const std::vector<const StrategyConfig*>& strategies) {
  uint32_t chunk = resolve_strategy(options).cache.chunk_size.value;
  std::map<uint32_t, size_t> block_sizes;  // block size, how many strategies have it
  for (const StrategyConfig* strategy : strategies) {
    ++block_sizes[strategy->cache.block_size.value];
    chunk = std::max(chunk, strategy->cache.chunk_size.value);
  }
  options.set.push_back("cache.chunk_size=" + std::to_string(chunk));
  const auto most =
      std::max_element(block_sizes.begin(), block_sizes.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != block_sizes.end())
    options.set.push_back("cache.block_size=" + std::to_string(most->first));
}

std::vector<Arm> resolve_arms(Options& options, const std::vector<std::string>& strategies,
                              const std::function<bool(const Arm&)>& makes_plugins) {
  std::vector<Arm> arms;
  PluginHost host(options);
  const std::vector<std::string> of_all = options.set;
  std::erase_if(options.set, [](const std::string& set) {  // dense attention has no such options
    for (const char* table : {"selector.", "representative.", "storage.window.", "storage.context.",
                              "attention.window.", "attention.context."})
      if (set.starts_with(table)) return true;
    return false;
  });
  for (const std::string& name : strategies) {
    Options with = options;
    with.strategy = name;
    with.set = of_all;
    arms.push_back({"", resolve_strategy(with)});
    arms.back().label = arms.back().strategy.name;
    if (!makes_plugins || makes_plugins(arms.back()))
      build_pipeline(arms.back().strategy, host.registry(), host.services());
  }
  std::vector<const StrategyConfig*> all;
  for (const Arm& arm : arms) all.push_back(&arm.strategy);
  fit_control(options, all);
  return arms;
}

}  // namespace kvasir::tool
