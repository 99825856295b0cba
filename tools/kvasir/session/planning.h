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

// Free memory of the device now, for what is planned there. UINT64_MAX: nothing is, or nobody here
// can say: there is no library of layers, or it finds no device.
uint64_t free_device_memory(const MemoryPlan& plan, const Model::Options& model);
// Throws Error(kResource) when K, V or summaries are planned in a device's memory, and more than
// free_bytes in all.
void check_device_memory(const MemoryPlan& plan, uint64_t free_bytes);
// "" when `needed` fits; else what is needed and what is there, of the memory that lacks: "3.1 GB
// of the GPU's memory, 2 GB".
std::string lacking_text(const MemoryBytes& needed, const MemoryBytes& there);

// Most tokens of one step: a piece of a prompt beside a decoded token of every other sequence.
uint32_t step_tokens(const StrategyConfig& strategy, uint32_t max_sequences);

// Creates the strategy's plugins, binds them to this shape, and asks them what they need. file: the
// model's, whose quantised weights stay as they are in kInt8, or null.
MemoryPlan plan_strategy(PluginHost& host, const StrategyConfig& strategy, const ModelShape& shape,
                         Model::Options model, uint32_t max_context, uint32_t max_sequences = 1,
                         const GgufFile* file = nullptr);

}  // namespace kvasir::tool
