// Plans without weights: of a model file, or of a shape that is known by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/runtime/plan.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

// -m, else the preset; Error when neither is given.
ModelShape shape_for_planning(const std::string& model, const std::string& preset_name);

// Resident bytes of a tokenizer with this many tokens: texts, types and index, measured.
inline uint64_t vocabulary_bytes(const ModelShape& shape) {
  return uint64_t{shape.vocab_size} * 160;
}

// Creates the strategy's plugins, binds them to this geometry, and asks them. The strategy says how
// many tokens a call of the model has.
MemoryPlan plan_strategy(PluginHost& host, const StrategyConfig& strategy, const ModelShape& shape,
                         Model::Options model, uint32_t max_context, uint32_t max_sequences = 1);

}  // namespace kvasir::tool
