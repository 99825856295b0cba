// Memory planning; see plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/plan.h"

#include <algorithm>

#include "core/runtime/rows.h"

namespace kvasir {
namespace {

// Resident bytes of the program and its shared libraries, measured on Debian 12.
constexpr uint64_t kProcessBytes = uint64_t{48} << 20;

uint64_t slab_bytes(const kvasir_layout& layout, const kvasir_geometry& g, uint64_t n_blocks,
                    uint64_t sparse_layers) {
  return (layout.record_bytes + layout.open_bytes) * g.n_kv_heads * n_blocks * sparse_layers;
}

}  // namespace

MemoryPlan make_plan(const ModelShape& shape, const Model::Memory& model, Pipeline& pipeline,
                     const EngineOptions& options, uint64_t vocabulary_bytes) {
  std::vector<uint64_t> dense_bits;
  kvasir_geometry g = make_geometry(shape, pipeline.strategy, options, dense_bits, false);
  MemoryPlan plan;
  pipeline.storage->validate(g);
  const kvasir_storage_plan storage = pipeline.storage->plan(g);
  pipeline.storage->bind(g);
  const std::vector<kvasir_kv_format> formats = pipeline.storage->formats();
  g.formats = formats.data();
  g.n_formats = static_cast<uint32_t>(formats.size());
  const uint64_t n_blocks = (uint64_t{g.max_context} + g.block_size - 1) / g.block_size;
  plan.kv_bytes = storage.block_bytes * n_blocks * g.n_layers * options.max_sequences;
  plan.kv_overhead_bytes = storage.overhead_bytes;
  if (storage.resident_bytes != 0) {  // and a dense step leases all of one layer
    const uint64_t layer_bytes = plan.kv_bytes / g.n_layers;
    plan.kv_slow_bytes =
        plan.kv_bytes - std::min(plan.kv_bytes, storage.resident_bytes + layer_bytes);
  }

  const CacheConfig& cache = pipeline.strategy.cache;
  const uint64_t sparse_layers = g.n_layers - cache.dense_layers.value.size();
  uint64_t max_units = 0;
  uint32_t unit = KVASIR_UNIT_BLOCK;
  plan.attends_all = true;
  if (pipeline.representative) {
    pipeline.representative->validate(g);
    pipeline.representative->bind(g);
    pipeline.representative->read_layout();
    const kvasir_layout& layout = pipeline.representative->layout();
    plan.record_bytes += slab_bytes(layout, g, n_blocks, sparse_layers) * options.max_sequences;
    plan.record_bytes_per_step = layout.record_bytes * g.n_kv_heads * n_blocks * sparse_layers;
  }
  for (auto& selector : pipeline.selectors) {
    selector->validate(g);
    selector->bind(g);
    selector->read_limits();
    plan.record_bytes +=
        slab_bytes(selector->layout(), g, n_blocks, sparse_layers) * options.max_sequences;
    unit = selector->limits().unit;
    max_units = selector->limits().max_units;
    const bool narrows =  // by choosing per step, or by keeping no more than that
        selector->has_select() || (selector->limits().plan_at != 0 && max_units != 0);
    plan.attends_all = !narrows || (max_units == 0 && selector->layout().record_bytes);
  }
  pipeline.attention->validate(g);
  pipeline.attention->bind(g);
  plan.attention_scratch_bytes =
      pipeline.attention->plan(g.max_queries, g.max_context).scratch_bytes;

  plan.weight_bytes = model.weight_bytes;
  plan.model_scratch_bytes = model.scratch_bytes;
  const uint64_t per_query = 2 * uint64_t{shape.d_model} +
                             2 * uint64_t{shape.n_q_heads} * std::max(g.head_dim, g.v_dim) +
                             uint64_t{shape.n_kv_heads} * (g.head_dim + g.v_dim);
  plan.activation_bytes = sizeof(float) * (per_query * g.max_queries +
                                           uint64_t{shape.vocab_size} * options.max_sequences);
  plan.process_bytes = kProcessBytes + vocabulary_bytes;

  const ForcedRange forced = forced_range(cache, unit, g.max_context, g.max_context);
  const uint64_t candidates = forced.window_begin - forced.sink_end;
  plan.sink_tokens = forced.sink_end;
  plan.window_tokens = g.max_context - forced.window_begin;
  plan.selected_tokens = candidates;
  if (!plan.attends_all)
    plan.selected_tokens =
        std::min<uint64_t>(candidates, max_units * (unit == KVASIR_UNIT_BLOCK ? g.block_size : 1));
  plan.attended_tokens = plan.sink_tokens + plan.window_tokens + plan.selected_tokens;
  const uint64_t row_bytes = formats[0].k_token_stride + formats[0].v_token_stride;
  const uint64_t dense_layers = cache.dense_layers.value.size();
  plan.kv_bytes_per_step =
      row_bytes * g.n_kv_heads *
      (plan.attended_tokens * sparse_layers + uint64_t{g.max_context} * dense_layers);
  return plan;
}

}  // namespace kvasir
