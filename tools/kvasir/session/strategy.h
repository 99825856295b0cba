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
// The file that computes layers on a GPU: KVASIR_DEVICE_LIBRARY, else where a build or an
// installation puts it beside its plugins. It need not exist.
std::string device_library();
// What --compute asks for; `auto` is int8, which models without quantised weights do not use
// (Model::arithmetic). Error when this CPU cannot compute so.
Compute wanted_compute(const Options& options);

}  // namespace kvasir::tool
