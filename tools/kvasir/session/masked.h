// Strategies that choose nothing: the control that says whether a choice mattered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/plugin/pipeline.h"

namespace kvasir::tool {

// Whether the strategy chooses, and can be run without: not a hybrid, nor one over keys before
// RoPE.
bool can_be_masked(const Pipeline& pipeline);

// The strategy with nothing chosen in its sparse layers, which attend to the first tokens and the
// window alone; nothing is given up. Its dense layers, blocks and storage stay.
StrategyConfig masked(const StrategyConfig& strategy);

// Strategies that configure alike, but for their names, have the same.
std::string configuration_of(const StrategyConfig& strategy);

}  // namespace kvasir::tool
