// What the flags come to: the strategy, where plugins are searched, how dense layers are computed.
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
// Whether a token's result is promised not to depend on what shares its step: true with
// --deterministic and with f32 dense layers.
bool is_deterministic(const Options& options);

}  // namespace kvasir::tool
