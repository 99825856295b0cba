// Binding one strategy; see strategy_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/strategy_run.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr uint32_t kPageBlocks = 64;  // blocks per slab page

Pipeline shared_with(Pipeline pipeline, const StrategyRun* first) {
  if (first) share_plugins(pipeline, first->pipeline);
  return pipeline;
}

}  // namespace

StrategyRun::StrategyRun(const Model& model, Pipeline pipeline_in, ThreadPool& pool,
                         HostServices& services, const EngineOptions& options,
                         const StrategyRun* first)
    : pipeline(shared_with(std::move(pipeline_in), first)),
      binding(bind_pipeline(model.shape(), pipeline, options)),
      store(first && first->pipeline.storage == pipeline.storage
                ? first->store
                : std::make_shared<BlockStore>(
                      *pipeline.storage, services, pool, binding->geometry.block_size,
                      model.shape().n_kv_heads, model.shape().head_dim, model.shape().v_head_dim)),
      context{.model = model,
              .pipeline = pipeline,
              .store = *store,
              .services = services,
              .pool = pool,
              .cache = pipeline.strategy.cache,
              .geometry = binding->geometry,
              .check_numerics = options.check_numerics,
              .on_attend = options.on_attend} {
  add_owners();
  find_leaders();
  context.faults.assign(pipeline.selectors.size(), 0);
}

void StrategyRun::add_owner(Representative* representative, Selector* selector,
                            const kvasir_layout& layout) {
  context.owners.push_back(
      {representative, selector, layout,
       SlabLayout(layout, geometry().n_kv_heads, geometry().block_size, kPageBlocks)});
}

void StrategyRun::add_owners() {
  if (pipeline.representative)
    add_owner(pipeline.representative.get(), nullptr, pipeline.representative->layout());
  for (auto& selector : pipeline.selectors) {
    if (selector->has_update()) add_owner(nullptr, selector.get(), selector->layout());
    const auto& limits = selector->limits();
    if (limits.flags & KVASIR_LIMIT_PREFILL_SELECT && limits.prefill_slice_tokens)
      slice_tokens = slice_tokens ? std::min(slice_tokens, limits.prefill_slice_tokens)
                                  : limits.prefill_slice_tokens;
  }
}

// Whose selection each layer uses: layer_step sparse layers share one.
void StrategyRun::find_leaders() {
  uint32_t sparse = 0, leader = 0;
  const uint32_t step = std::max(1u, pipeline.strategy.cache.layer_step.value);
  for (uint32_t layer = 0; layer < geometry().n_layers; ++layer) {
    const bool dense = binding->is_dense(layer);
    context.dense_layer.push_back(dense);
    if (!dense && sparse++ % step == 0) leader = layer;
    context.group_leader.push_back(dense ? layer : leader);
  }
}

bool StrategyRun::reads_prompts_densely() const {
  return !select.selects_in_prefill() &&
         std::none_of(pipeline.selectors.begin(), pipeline.selectors.end(),
                      [](const auto& s) { return s->limits().plan_at & KVASIR_PLAN_AT_CHUNK_END; });
}

bool StrategyRun::can_lead(const StrategyRun& other) const {
  return shares_storage(other) && pipeline.attention == other.pipeline.attention &&
         reads_prompts_densely() && other.reads_prompts_densely();
}

void StrategyRun::seq_open(SequenceId id) {
  for (auto& selector : pipeline.selectors) selector->seq_open(id);
  if (pipeline.representative) pipeline.representative->seq_open(id);
  pipeline.storage->seq_open(id);
}

void StrategyRun::seq_fork(SequenceId parent, SequenceId child) {
  for (auto& selector : pipeline.selectors) selector->seq_fork(parent, child);
  if (pipeline.representative) pipeline.representative->seq_fork(parent, child);
  pipeline.storage->seq_fork(parent, child);
}

void StrategyRun::seq_close(SequenceId id) noexcept {
  for (auto& selector : pipeline.selectors) selector->seq_close(id);
  if (pipeline.representative) pipeline.representative->seq_close(id);
}

void StrategyRun::release_step(LayerState& layer) {
  store->release_step(layer);
  for (PackedHead& head : layer.packed.heads) store->release_step(head);
}

}  // namespace kvasir
