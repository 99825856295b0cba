// See target.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/target.h"

#include <algorithm>

namespace kvasir::tool {
namespace {

constexpr const char* kNominalPreset = "llama-3.1-8b";  // when no model says otherwise

ModelShape nominal_shape(const StrategyConfig& strategy) {
  ModelShape shape = shape_for_planning("", kNominalPreset);
  const std::vector<uint32_t>& dense = strategy.cache.dense_layers.value;
  if (!dense.empty()) shape.n_layers = std::max(shape.n_layers, dense.back() + 1);
  return shape;
}

}  // namespace

Target target_of(const Options& options, const std::string& preset_name,
                 const StrategyConfig& strategy) {
  Target out;
  out.is_given = !options.model.empty() || !preset_name.empty();
  out.shape =
      out.is_given ? shape_for_planning(options.model, preset_name) : nominal_shape(strategy);
  out.context = options.ctx_size;
  if (out.context == 0) out.context = strategy.cache.max_seq_len.value;
  if (out.context == 0) out.context = out.shape.max_context;
  return out;
}

MemoryPlan plan_target(PluginHost& host, const StrategyConfig& strategy, const Target& target) {
  return plan_strategy(host, strategy, target.shape, {Compute::kF32}, target.context);
}

}  // namespace kvasir::tool
