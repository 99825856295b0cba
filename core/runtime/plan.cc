// Memory planning; see plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/plan.h"

#include <algorithm>

#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/blocks/memory_kinds.h"
#include "core/runtime/select/index_lists.h"
#include "core/runtime/select/scores.h"
#include "core/runtime/sequence/slab.h"
#include "core/runtime/step/binding.h"

namespace kvasir {
namespace {

uint64_t slab_bytes(const RecordLayout& layout, const kvasir_geometry& g, uint64_t n_blocks,
                    uint64_t sparse_layers) {
  const uint64_t n_pages = (n_blocks + kSlabPageBlocks - 1) / kSlabPageBlocks;
  return ((layout.record_bytes + layout.open_bytes) * kSlabPageBlocks + layout.page_bytes) *
         g.n_kv_heads * n_pages * sparse_layers;
}

// Of one layer and kv head, to score n_blocks for a decoded token. What belongs to pages tells
// which records need be read where only the best scores count (Scorer): measured on text, those of
// two to three times as many blocks as are chosen.
uint64_t bytes_to_score(const Pipeline& pipeline, const kvasir_geometry& g, uint64_t n_blocks) {
  constexpr uint64_t kReadOfChosen = 3;
  const RecordLayout& layout = pipeline.representative->layout();
  uint64_t n_read = 0;
  for (const auto& selector : pipeline.selectors) {
    if (!(selector->desc().needs & KVASIR_NEED_SCORES)) continue;
    const uint64_t n_best = scores_that_count(*selector, *pipeline.representative, g);
    n_read = std::max(n_read, n_best ? kReadOfChosen * n_best : n_blocks);
  }
  if (layout.page_bytes == 0 || n_read == 0 || n_read >= n_blocks)
    return layout.record_bytes * n_blocks;
  const uint64_t n_pages = (n_blocks + kSlabPageBlocks - 1) / kSlabPageBlocks;
  return layout.page_bytes * n_pages + layout.record_bytes * n_read;
}

// To read ahead over a storage that moves blocks, the core scores all layers but the first twice.
uint64_t layers_scored(const Pipeline& pipeline, const Binding& binding) {
  const uint64_t n = binding.n_sparse_layers();
  const bool is_moved = binding.storage.resident_bytes != 0;
  const bool is_twice = is_moved && pipeline.strategy.cache.foresee.value == Foresee::kRead;
  return n > 0 && is_twice ? 2 * n - 1 : n;
}

// By choosing per step, or by keeping no more than that; a share of the context, or of the heads,
// says itself what it comes to.
MemoryPlan::Budget budget_of(const Selector& selector, uint32_t block_size, uint32_t max_context) {
  const SelectorLimits& limits = selector.limits();
  const uint64_t unit_tokens = limits.unit == KVASIR_UNIT_BLOCK ? block_size : 1;
  const bool chooses = selector.has_select() || limits.plan_at != 0;
  MemoryPlan::Budget budget;
  budget.selector = selector.id();
  budget.of_context = limits.expected_units != 0;
  budget.limited = chooses && (budget.of_context || limits.max_units != 0 ||
                               limits.flags & KVASIR_LIMIT_ZERO_UNITS);
  if (max_context < limits.dense_below_tokens) budget.limited = false;
  budget.tokens = (budget.of_context ? limits.expected_units : limits.max_units) * unit_tokens;
  return budget;
}

bool evicts(const Selector& selector) {
  return selector.limits().plan_at && selector.limits().action != KVASIR_ACTION_RESTRICT;
}

// Of one sequence of n_tokens whose selector evicts: what is left moves to blocks of one kv head
// each, layer by layer. Those of the prompt become free, but are of another size, so that a storage
// need not give their memory to these. A storage of several tiers keeps to its own limit.
uint64_t packed_bytes(const Binding& binding, const Pipeline& pipeline, uint64_t n_tokens) {
  if (binding.storage.resident_bytes != 0) return 0;
  const kvasir_geometry& g = binding.geometry;
  const uint64_t n_layers = binding.n_sparse_layers();
  uint64_t kept = 0;
  for (const auto& selector : pipeline.selectors) {
    if (!evicts(*selector)) continue;
    const MemoryPlan::Budget budget = budget_of(*selector, g.block_size, g.max_context);
    kept = std::max(kept, budget.limited ? g.sink_tokens + budget.tokens : n_tokens);
  }
  if (kept == 0 || n_layers == 0) return 0;
  // A block of each head is partly filled; a layer that is packed again is there twice.
  const uint64_t n_blocks = std::min(kept, n_tokens) / g.block_size + 1;
  return binding.storage.block_bytes * n_blocks * (n_layers + 1);
}

// Keys that are stored before RoPE are rotated into a copy for each step: at most a layer of all
// sequences, in f32, and its queries.
uint64_t rotated_bytes(const kvasir_geometry& g, uint64_t n_sequences) {
  if (g.k_state != KVASIR_K_UNROTATED) return 0;
  return sizeof(float) * g.head_dim *
         (uint64_t{g.max_context} * g.n_kv_heads * n_sequences +
          uint64_t{g.max_queries} * g.n_q_heads);
}

// Who reads the host's memory alone is handed copies of a device's blocks: at most a layer of all
// sequences.
uint64_t copied_bytes(const Binding& binding, const Pipeline& pipeline, uint64_t n_sequences) {
  const std::span<const kvasir_kv_format> formats(binding.formats);
  bool copies = pipeline.representative && reads_copies(*pipeline.representative, formats);
  for (const auto& selector : pipeline.selectors)
    copies = copies || (reads_keys(*selector) && reads_copies(*selector, formats));
  if (!copies) return 0;
  const kvasir_geometry& g = binding.geometry;
  const uint64_t n_blocks = (uint64_t{g.max_context} + g.block_size - 1) / g.block_size;
  return binding.storage.block_bytes * n_blocks * n_sequences;
}

// Of one sequence in hybrid mode: a piece of a prompt is in the window until a layer is through.
uint64_t window_bytes(const Binding& binding, const Pipeline& pipeline) {
  const kvasir_geometry& g = binding.geometry;
  const uint64_t tokens = uint64_t{g.window_tokens} + pipeline.strategy.cache.chunk_size.value;
  return binding.window_storage.block_bytes * g.n_layers * (tokens / g.block_size + 2);
}

// K and V of n_tokens over all layers: one with a sliding window holds it and a piece of a prompt.
uint64_t bytes_in_layers(const Binding& binding, const Pipeline& pipeline, uint64_t n_tokens,
                         uint64_t n_shared_blocks) {
  const kvasir_geometry& g = binding.geometry;
  const auto blocks_of = [&](uint64_t n) { return (n + g.block_size - 1) / g.block_size; };
  uint64_t n_blocks = 0;
  for (uint32_t layer = 0; layer < g.n_layers; ++layer) {
    const uint64_t window = g.sliding_windows ? g.sliding_windows[layer] : 0;
    const uint64_t most = window + pipeline.strategy.cache.chunk_size.value;
    n_blocks += window ? std::min(blocks_of(n_tokens), blocks_of(most) + 2)
                       : blocks_of(n_tokens) - n_shared_blocks;
  }
  return binding.storage.block_bytes * n_blocks;
}

MemoryBytes in_memory(uint64_t bytes, uint32_t mem_kind) {
  return is_host_memory(mem_kind) ? MemoryBytes(bytes) : MemoryBytes(0, bytes);
}

// Where storages hold K and V. In hybrid mode the window's formats stand behind the context's.
MemoryBytes kv_in_memory(const Binding& binding, uint64_t kv_bytes, uint64_t window_bytes) {
  return in_memory(kv_bytes, binding.formats.front().mem_kind) +
         in_memory(window_bytes, binding.formats.back().mem_kind);
}

}  // namespace

MemoryPlan make_plan(const ModelShape& shape, const Model::Memory& model, Pipeline& pipeline,
                     const EngineOptions& options, uint64_t vocabulary_bytes) {
  const std::shared_ptr<const Binding> bound =
      bind_pipeline(shape, model.may_round, pipeline, options);
  const Binding& binding = *bound;
  const kvasir_geometry& g = binding.geometry;
  const kvasir_storage_plan& storage = binding.storage;
  MemoryPlan plan;
  const uint64_t n_blocks = (uint64_t{g.max_context} + g.block_size - 1) / g.block_size;
  plan.kv_bytes = bytes_in_layers(binding, pipeline, g.max_context, 0) * options.max_sequences;
  plan.kv_packed_bytes = packed_bytes(binding, pipeline, g.max_context) * options.max_sequences;
  plan.kv_overhead_bytes = storage.overhead_bytes;
  if (pipeline.is_hybrid()) {
    plan.kv_overhead_bytes += binding.window_storage.overhead_bytes;
    plan.kv_window_bytes = window_bytes(binding, pipeline) * options.max_sequences;
    plan.prompts_by =
        (binding.prompts_by_window ? pipeline.window_attention : pipeline.attention)->id();
  }
  if (storage.resident_bytes != 0) {  // and a dense step leases all of one layer
    const uint64_t layer_bytes = storage.block_bytes * n_blocks * options.max_sequences;
    plan.kv_slow_bytes =
        plan.kv_bytes - std::min(plan.kv_bytes, storage.resident_bytes + layer_bytes);
  }
  plan.device_sequence_bytes =
      kv_in_memory(binding, plan.kv_bytes - plan.kv_slow_bytes + plan.kv_packed_bytes,
                   plan.kv_window_bytes)
          .device;

  const CacheConfig& cache = pipeline.strategy.cache;
  const uint64_t sparse_layers = binding.n_sparse_layers();
  plan.n_sliding_layers = binding.n_sliding_layers();
  plan.n_dense_layers = g.n_layers - binding.n_sparse_layers() - plan.n_sliding_layers;
  plan.attends_all = true;
  const auto add_slabs = [&](const RecordLayout& layout) {
    const uint64_t bytes = slab_bytes(layout, g, n_blocks, sparse_layers) * options.max_sequences;
    plan.record_bytes += bytes;
    plan.device_sequence_bytes += in_memory(bytes, layout.mem_kind).device;
  };
  if (pipeline.representative) {
    const RecordLayout& layout = pipeline.representative->layout();
    add_slabs(layout);
    plan.add_state(layout.state_bytes, layout.state_peak_bytes);
    plan.record_bytes_per_step =
        bytes_to_score(pipeline, g, n_blocks) * g.n_kv_heads * layers_scored(pipeline, binding);
  }
  for (auto& selector : pipeline.selectors) {
    add_slabs(selector->layout());
    plan.add_state(selector->limits().state_bytes, selector->limits().state_peak_bytes);
    plan.budgets.push_back(budget_of(*selector, g.block_size, g.max_context));
    plan.attends_all = plan.attends_all && !plan.budgets.back().limited;
  }
  plan.attention_scratch_bytes = binding.attention_scratch.main +
                                 rotated_bytes(g, options.max_sequences) +
                                 copied_bytes(binding, pipeline, options.max_sequences);
  plan.device_attention_bytes = binding.attention_scratch.device;

  plan.weight_bytes = model.weight_bytes;
  plan.model_scratch_bytes = model.scratch_bytes;
  plan.device_weight_bytes = model.device_weight_bytes;
  plan.device_scratch_bytes = model.device_scratch_bytes;
  const uint64_t n_q = binding.constant_positions ? 3 : 2;  // q, o; q at constant positions
  const uint64_t per_query = 2 * uint64_t{shape.d_model} +
                             n_q * shape.n_q_heads * std::max(g.head_dim, g.v_dim) +
                             uint64_t{shape.n_kv_heads} * (g.head_dim + g.v_dim);
  plan.activation_bytes = sizeof(float) * (per_query * g.max_queries +
                                           uint64_t{shape.vocab_size} * options.max_sequences);
  plan.process_bytes = kProcessBytes + vocabulary_bytes;

  const bool by_token =
      pipeline.selectors.size() == 1 && pipeline.selectors[0]->limits().unit == KVASIR_UNIT_TOKEN;
  const ForcedRange forced = forced_range(cache, by_token ? KVASIR_UNIT_TOKEN : KVASIR_UNIT_BLOCK,
                                          g.max_context, g.max_context);
  plan.sink_tokens = forced.sink_end;
  plan.window_tokens = g.max_context - forced.window_begin;
  plan.selected_tokens = forced.window_begin - forced.sink_end;
  for (const MemoryPlan::Budget& budget : plan.budgets)
    if (budget.limited) plan.selected_tokens = std::min(plan.selected_tokens, budget.tokens);
  plan.attended_tokens = plan.sink_tokens + plan.window_tokens + plan.selected_tokens;
  for (const uint32_t window : binding.sliding_windows)
    plan.sliding_tokens += std::min(window, g.max_context);
  const kvasir_kv_format& format = binding.formats[0];
  const uint64_t row_bytes = format.k_token_stride + format.v_token_stride;
  plan.kv_bytes_per_step = row_bytes * g.n_kv_heads *
                           (plan.attended_tokens * sparse_layers +
                            uint64_t{g.max_context} * plan.n_dense_layers + plan.sliding_tokens);
  return plan;
}

MemoryBytes plan_sequence(const Binding& binding, const Pipeline& pipeline, uint32_t n_tokens,
                          uint32_t n_shared) {
  const kvasir_geometry& g = binding.geometry;
  const uint64_t n_blocks = (uint64_t{n_tokens} + g.block_size - 1) / g.block_size;
  const uint64_t sparse_layers = binding.n_sparse_layers();
  const bool any_evicts = std::any_of(pipeline.selectors.begin(), pipeline.selectors.end(),
                                      [](const auto& selector) { return evicts(*selector); });
  const uint64_t shared_blocks = any_evicts ? 0 : std::min(n_shared, n_tokens) / g.block_size;
  const uint64_t layer_bytes = binding.storage.block_bytes * (n_blocks - shared_blocks);
  uint64_t kv_bytes = bytes_in_layers(binding, pipeline, n_tokens, shared_blocks);
  if (binding.storage.resident_bytes != 0)
    kv_bytes = std::min(kv_bytes, binding.storage.resident_bytes + layer_bytes);
  kv_bytes += packed_bytes(binding, pipeline, n_tokens);
  MemoryBytes bytes =
      kv_in_memory(binding, kv_bytes, pipeline.is_hybrid() ? window_bytes(binding, pipeline) : 0);
  uint64_t state_bytes = 0;
  const auto add = [&](const RecordLayout& layout, uint64_t stays, uint64_t peak) {
    bytes += in_memory(slab_bytes(layout, g, n_blocks, sparse_layers), layout.mem_kind);
    state_bytes += std::max(stays, peak);
  };
  if (pipeline.representative) {
    const RecordLayout& layout = pipeline.representative->layout();
    add(layout, layout.state_bytes, layout.state_peak_bytes);
  }
  for (const auto& selector : pipeline.selectors)
    add(selector->layout(), selector->limits().state_bytes, selector->limits().state_peak_bytes);
  return bytes + state_bytes / std::max(1u, g.max_sequences);
}

}  // namespace kvasir
