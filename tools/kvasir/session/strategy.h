// The settings that follow from flags and environment: the strategy, the folders of plugins, the
// type of dense layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/config/strategy.h"
#include "core/model/layers/model.h"
#include "core/plugin/registry.h"
#include "tools/kvasir/cli/options.h"

namespace kvasir::tool {

// The strategy after file, environment, -ctk and -ctv, and --set. Without a file: dense attention
// over f16 blocks in main memory.
StrategyConfig resolve_strategy(const Options& options);
// Path of a strategy given as a file or as the name of a shipped preset.
std::string find_strategy(const std::string& name);
PluginSearch plugin_search(const Options& options);
Compute resolve_compute(const Options& options);
const char* name(Compute compute);  // "f32", "bf16"
// True when a token's result never depends on the other tokens of its step: with --deterministic,
// and with f32 dense layers.
bool is_deterministic(const Options& options);

}  // namespace kvasir::tool
