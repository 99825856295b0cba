// Keys of KTransformers' long-context mode that say which plugins there are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "core/config/strategy.h"

namespace kvasir::tool {

// Its representative types in lower case, and our plugins.
const std::map<std::string, std::string>& representative_types();

// preselect_block and preselect_block_count, and with them kernel_size and max_capacity_prompt, of
// another selector than kvasir.preselect become a kvasir.preselect in front of it, or with
// preselect_block = false nothing. Throws Error(kInput) at the key.
void apply_preselect_keys(StrategyConfig& strategy);

}  // namespace kvasir::tool
