// Keys of KTransformers' long-context mode that choose plugins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "core/config/strategy.h"

namespace kvasir::tool {

// KTransformers' representative types in lower case, each with our plugin.
const std::map<std::string, std::string>& representative_types();

// A selector other than kvasir.preselect may have the keys preselect_block and
// preselect_block_count. They become a kvasir.preselect in front of that selector, which takes
// kernel_size and max_capacity_prompt too; with preselect_block = false they are dropped. Throws
// Error(kInput) that names the key's place.
void apply_preselect_keys(StrategyConfig& strategy);

}  // namespace kvasir::tool
