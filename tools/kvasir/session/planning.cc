// See planning.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/planning.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/model/layers/device_library.h"
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

uint64_t free_device_memory(const MemoryPlan& plan, const Model::Options& model) {
  if (plan.device_bytes() == 0) return UINT64_MAX;
  if (model.device_layers == 0 && !std::filesystem::exists(model.device_library)) return UINT64_MAX;
  const DeviceLibraryTable& library = open_device_library(model.device_library);
  // What finds no device says so when it is loaded.
  return library.problem().empty() ? library.memory().free_bytes : UINT64_MAX;
}

void check_device_memory(const MemoryPlan& plan, uint64_t free_bytes) {
  const uint64_t of_plugins = plan.device_sequence_bytes + plan.device_attention_bytes;
  if (of_plugins == 0 || plan.device_bytes() <= free_bytes) return;
  throw Error(ErrorKind::kResource,
              "the GPU has " + bytes_text(free_bytes) + " free, " +
                  bytes_text(plan.device_bytes()) + " are planned there (layers " +
                  bytes_text(plan.device_weight_bytes + plan.device_scratch_bytes) +
                  ", K, V and summaries " + bytes_text(plan.device_sequence_bytes) +
                  ", attention " + bytes_text(plan.device_attention_bytes) +
                  "): lower -ngl or -c, or see `kvasir plan`");
}

std::string lacking_text(const MemoryBytes& needed, const MemoryBytes& there) {
  if (needed.main > there.main) return bytes_text(needed.main) + ", " + bytes_text(there.main);
  if (needed.device > there.device)
    return bytes_text(needed.device) + " of the GPU's memory, " + bytes_text(there.device);
  return "";
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
