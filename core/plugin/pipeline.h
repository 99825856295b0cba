// The plugins of one run: created from a strategy, checked against each other, not yet bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "core/config/strategy.h"
#include "core/plugin/instance.h"

namespace kvasir {

struct Pipeline {
  StrategyConfig strategy;
  // What bind() pointed the plugins to: outlives them. One more per pipeline it shares plugins
  // with.
  std::vector<std::shared_ptr<const void>> bound_to;
  std::vector<std::unique_ptr<Selector>> selectors;
  std::unique_ptr<Representative> representative;  // null when the strategy names none
  std::shared_ptr<Storage> storage;                // strategies of one engine may share these two
  std::shared_ptr<Attention> attention;
  // Hybrid mode, or null: they hold and read the newest blocks, those above the others.
  std::shared_ptr<Storage> window_storage;
  std::shared_ptr<Attention> window_attention;
  // In validate mode, or null: what the results of `attention` are compared with. Not in hybrid
  // mode.
  std::unique_ptr<Attention> reference;
  bool is_hybrid() const { return window_storage != nullptr; }
  struct Explained {  // per plugin section, for `config explain`
    Kind kind;
    std::string id, file;
    std::vector<ResolvedOptions::Explained> options;
    std::string holds{};  // "window", "context"; empty: there is one of this kind
  };
  std::vector<Explained> explained;
  bool names_files = false;  // some plugin's option, as the user set it, is a path
};

// Opens and creates everything the strategy names. Before any plugin code but describe() runs,
// every option is checked; then needs against provides (both TOML lines are named), dtypes of
// storage against backend and representative, unit and weights against the backend. Throws
// Error(kInput).
Pipeline build_pipeline(const StrategyConfig& strategy, PluginRegistry& registry,
                        const HostServices& services);

// Whether the plugins of a kind are the same file with the same options in both.
bool same_plugin(const Pipeline& a, const Pipeline& b, Kind kind);

}  // namespace kvasir
