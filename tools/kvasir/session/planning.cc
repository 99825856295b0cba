// See planning.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/planning.h"

#include <algorithm>

#include "core/error.h"
#include "core/model/synthetic/random_model.h"
#include "core/platform/memory.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

ModelShape shape_for_planning(const std::string& model, const std::string& preset_name) {
  if (!model.empty() && !preset_name.empty())
    throw input_error("-m and --preset: give one of them");
  if (!model.empty()) return read_shape(GgufFile::open(model));
  if (preset_name.empty()) throw input_error("no model: give -m FILE.gguf or --preset NAME");
  return shape_of(preset(preset_name));
}

void check_memory(uint64_t bytes, const std::string& what, const std::string& parts,
                  const std::string& remedy) {
  const uint64_t available = memory_info().available_bytes;
  if (bytes <= available) return;
  throw Error(ErrorKind::kResource, what + " needs " + bytes_text(bytes) +
                                        (parts.empty() ? "" : " (" + parts + ")") + ", " +
                                        bytes_text(available) + " are available: " + remedy);
}

uint32_t step_tokens(const StrategyConfig& strategy, uint32_t max_sequences) {
  return std::max(1u, strategy.cache.chunk_size.value) + max_sequences - 1;
}

MemoryPlan plan_strategy(PluginHost& host, const StrategyConfig& strategy, const ModelShape& shape,
                         Model::Options model, uint32_t max_context, uint32_t max_sequences,
                         const GgufFile* file) {
  Pipeline pipeline = build_pipeline(strategy, host.registry(), host.services());
  EngineOptions engine;
  model.max_batch_tokens = engine.max_step_tokens = step_tokens(strategy, max_sequences);
  engine.max_context = max_context;
  engine.max_sequences = max_sequences;
  const Model::Memory memory =
      file ? Model::plan_memory(*file, model) : Model::plan_memory(shape, model);
  return make_plan(shape, memory, pipeline, engine, vocabulary_bytes(shape));
}

}  // namespace kvasir::tool
