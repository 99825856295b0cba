// Memory plans for a model file or for a shape that is known by name. No weights are loaded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/runtime/plan.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

// The shape of -m, else of the preset. Throws an Error unless exactly one is given.
ModelShape shape_for_planning(const std::string& model, const std::string& preset_name);

// Resident bytes of a tokenizer with this many tokens: texts, types and index, measured.
inline uint64_t vocabulary_bytes(const ModelShape& shape) {
  return uint64_t{shape.vocab_size} * 160;
}

// Throws Error(kResource) when `what` ("a context of 100 tokens") needs more than is available now.
// parts: of the bytes, in words, or "".
void check_memory(uint64_t bytes, const std::string& what, const std::string& parts,
                  const std::string& remedy);

// Throws Error(kResource) when a device's library is asked for layers and what is planned in its
// memory, K and V included, is more than is free there.
void check_device_memory(const MemoryPlan& plan, const Model::Options& model);

// Most tokens of one step: a piece of a prompt beside a decoded token of every other sequence.
uint32_t step_tokens(const StrategyConfig& strategy, uint32_t max_sequences);

// Creates the strategy's plugins, binds them to this shape, and asks them what they need. file: the
// model's, whose quantised weights stay as they are in kInt8, or null.
MemoryPlan plan_strategy(PluginHost& host, const StrategyConfig& strategy, const ModelShape& shape,
                         Model::Options model, uint32_t max_context, uint32_t max_sequences = 1,
                         const GgufFile* file = nullptr);

}  // namespace kvasir::tool
