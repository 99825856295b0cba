// Binding one strategy; see strategy_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/strategy_run.h"

#include <algorithm>
#include <array>

#include "core/runtime/sequence/run_identity.h"

namespace kvasir {
namespace {

Pipeline shared_with(Pipeline pipeline, const StrategyRun* first) {
  if (first) share_plugins(pipeline, first->pipeline);
  return pipeline;
}

bool has_storage_of(const StrategyRun* first, const Pipeline& pipeline) {
  return first && first->pipeline.storage == pipeline.storage;
}

std::shared_ptr<BlockStore> new_store(Storage& storage, MemoryBridge& bridge,
                                      HostServices& services, ThreadPool& pool,
                                      const kvasir_geometry& g, BlockStore* window = nullptr) {
  auto made = std::make_shared<BlockStore>(storage, bridge, services, pool, g.block_size,
                                           g.n_kv_heads, g.head_dim, g.v_dim);
  if (window) made->set_window(*window);
  return made;
}

}  // namespace

StrategyRun::StrategyRun(const Model& model, Pipeline pipeline_in, ThreadPool& pool,
                         HostServices& services, const EngineOptions& options,
                         const StrategyRun* first)
    : pipeline(shared_with(std::move(pipeline_in), first)),
      binding(bind_pipeline(model.shape(), model.may_round(), pipeline, options)),
      bridge(has_storage_of(first, pipeline) ? first->bridge
                                             : std::make_shared<MemoryBridge>(*pipeline.storage)),
      window_bridge(!pipeline.is_hybrid() ? nullptr
                    : has_storage_of(first, pipeline)
                        ? first->window_bridge
                        : std::make_shared<MemoryBridge>(*pipeline.window_storage)),
      window_store(!pipeline.is_hybrid() ? nullptr
                   : has_storage_of(first, pipeline)
                       ? first->window_store
                       : new_store(*pipeline.window_storage, *window_bridge, services, pool,
                                   binding->geometry)),
      store(has_storage_of(first, pipeline) ? first->store
                                            : new_store(*pipeline.storage, *bridge, services, pool,
                                                        binding->geometry, window_store.get())),
      faults(pipeline, services),
      context(make_context(model, pool, options)) {
  store->wait_at_least(std::chrono::seconds(pipeline.strategy.cache.transfer_seconds.value));
  take_prefill_limits();
  works_on_models_device = finds_models_device();
  share_stream();
  name_run(options, first);
}

// What is merged, compared with a reference or turned twice is on the host.
bool StrategyRun::finds_models_device() const {
  const Storage& storage = *pipeline.storage;
  const Attention& attention = *pipeline.attention;
  const auto is_host = [](const kvasir_kv_format& format) {
    return is_host_memory(format.mem_kind);
  };
  const auto contributes = [](const auto& selector) {
    return (selector->desc().needs & KVASIR_NEED_CONTRIBUTION) != 0;
  };
  if (context.model.placement().n_layers == 0 || pipeline.is_hybrid() || pipeline.reference ||
      binding->constant_positions ||
      std::any_of(binding->formats.begin(), binding->formats.end(), is_host) ||
      std::any_of(pipeline.selectors.begin(), pipeline.selectors.end(), contributes))
    return false;
  return storage.reads(KVASIR_MEM_DEVICE) && attention.reads(KVASIR_MEM_DEVICE) &&
         attention.writes(KVASIR_MEM_DEVICE) && storage.has_device_memory() &&
         storage.checks_finite() &&
         context.model.is_device_memory(bridge->new_page(1).get());  // whose memory it gives
}

// In hybrid mode the backends work beside each other, and who works on the host is called when all
// is done there.
void StrategyRun::share_stream() const {
  if (!pipeline.storage->has_device_memory() || pipeline.is_hybrid()) return;
  std::vector<const Instance*> users{pipeline.storage.get()};
  const auto add = [&](const auto& plugin) {
    if (plugin && (plugin->reads(KVASIR_MEM_DEVICE) || plugin->writes(KVASIR_MEM_DEVICE)))
      users.push_back(plugin.get());
  };
  add(pipeline.attention);
  add(pipeline.reference);
  add(pipeline.representative);
  for (const auto& selector : pipeline.selectors) add(selector);
  bridge->share_stream(users);
}

void StrategyRun::name_run(const EngineOptions& options, const StrategyRun* first) {
  if (!pipeline.storage->has_store()) {
    content_run = hash_of(std::array<uint64_t, 4>{
        geometry().k_state, binding->formats[0].dtype_k, binding->formats[0].dtype_v,
        // of this process: backends round in their own ways
        reinterpret_cast<uintptr_t>(pipeline.attention.get())});
    return;
  }
  // Without the model's hash, or with layers of which only a window is kept, nothing could be found
  // again.
  names_content = options.model_hash && !geometry().sliding_windows && !pipeline.is_hybrid();
  if (!names_content) return;
  const RunIdentity identity =
      run_identity(context.model, options.model_hash(), pipeline, geometry(), binding->formats[0]);
  content_run = identity.run;
  // A storage knows one run.
  if (!has_storage_of(first, pipeline))
    pipeline.storage->name_run(content_run, identity.about);
  else
    names_content = first->names_content && first->content_run == content_run;
}

RunContext StrategyRun::make_context(const Model& model, ThreadPool& pool,
                                     const EngineOptions& options) {
  RunContext out{.model = model,
                 .pipeline = pipeline,
                 .store = *store,
                 .window_bridge = window_bridge.get(),
                 .prompts_by_window = binding->prompts_by_window,
                 .lists_stay = binding->lists_stay,
                 .pool = pool,
                 .faults = faults,
                 .counters = counters,
                 .cache = pipeline.strategy.cache,
                 .geometry = binding->geometry,
                 .model_hash = options.model_hash,
                 .on_attend = options.on_attend,
                 .owners = make_owners(pool)};
  // layer_step sparse layers share a selection.
  uint32_t sparse = 0, leader = 0;
  const uint32_t step = std::max(1u, pipeline.strategy.cache.layer_step.value);
  for (uint32_t layer = 0; layer < geometry().n_layers; ++layer) {
    const bool dense = binding->is_dense(layer);
    out.dense_layer.push_back(dense);
    if (!dense && sparse++ % step == 0) leader = layer;
    out.group_leader.push_back(dense ? layer : leader);
  }
  return out;
}

std::vector<SlabOwner> StrategyRun::make_owners(ThreadPool& pool) const {
  std::vector<SlabOwner> owners;
  const auto add = [&](Representative* representative, Selector* selector,
                       const RecordLayout& layout) {
    owners.push_back({representative, selector, layout,
                      SlabLayout(layout, geometry().n_kv_heads, geometry().block_size,
                                 kSlabPageBlocks, bridge.get(), &pool)});
  };
  if (pipeline.representative)
    add(pipeline.representative.get(), nullptr, pipeline.representative->layout());
  for (const auto& selector : pipeline.selectors)
    if (selector->has_update()) add(nullptr, selector.get(), selector->layout());
  return owners;
}

void StrategyRun::take_prefill_limits() {
  for (const auto& selector : pipeline.selectors) {
    const auto& limits = selector->limits();
    if (limits.flags & KVASIR_LIMIT_PREFILL_SELECT && limits.prefill_slice_tokens)
      slice_tokens = slice_tokens ? std::min(slice_tokens, limits.prefill_slice_tokens)
                                  : limits.prefill_slice_tokens;
    dense_last_queries = std::max(dense_last_queries, limits.dense_last_queries);
    query_block = std::max(query_block, limits.query_block);
  }
}

bool StrategyRun::reads_prompts_densely() const {
  return !context.selects_in_prefill() &&
         std::none_of(pipeline.selectors.begin(), pipeline.selectors.end(),
                      [](const auto& s) { return s->limits().plan_at & KVASIR_PLAN_AT_CHUNK_END; });
}

bool StrategyRun::can_lead(const StrategyRun& other) const {
  return &other != this && shares_storage(other) &&
         pipeline.attention == other.pipeline.attention &&
         pipeline.window_attention == other.pipeline.window_attention && reads_prompts_densely() &&
         other.reads_prompts_densely();
}

// What a plugin has made of queries that are gone, or of an order of events, cannot be made again
// from K and V.
std::string StrategyRun::cannot_recompute() const {
  if (geometry().sliding_windows) return "the model has layers that keep a sliding window only";
  for (const auto& selector : pipeline.selectors) {
    const auto& limits = selector->limits();
    const std::string who = selector->id() + " ";
    if (limits.plan_at) return who + "gives tokens up or out of reach";
    if (limits.mass_at || limits.prefill_last_queries)
      return who + "keeps what queries of the prompt attended to";
  }
  for (const SlabOwner& owner : context.owners) {
    if (owner.layout.mass_at || owner.layout.open_bytes || owner.wants_prompt_end() ||
        owner.layout.flags & KVASIR_LAYOUT_WANT_FINAL)
      return owner.plugin().id() + " builds its records from a whole prompt or from attention mass";
  }
  return "";
}

std::string StrategyRun::cannot_restore() const {
  if (const std::string why = cannot_recompute(); !why.empty()) return why;
  if (pipeline.is_hybrid()) return "the context has two storages";
  if (pipeline.strategy.cache.positions.value == Positions::kSlot)
    return "its keys are stored before rotation";
  for (const auto& selector : pipeline.selectors)
    if (selector->has_prefill() || selector->limits().flags & KVASIR_LIMIT_PREFILL_SELECT)
      return selector->id() + " works on the queries of the prompt";
  if (!names_content)
    return "its model has no name, or another strategy uses the storage with another backend";
  return "";
}

std::string StrategyRun::cannot_verify() const {
  for (const auto& selector : pipeline.selectors) {
    const auto& limits = selector->limits();
    const std::string who = selector->id() + " ";
    if (limits.plan_at & KVASIR_PLAN_AT_STEP_END)
      return who + "plans what to drop after each decoded token";
    if (limits.mass_at & KVASIR_MASS_AT_DECODE)
      return who + "keeps what each decoded token attended to";
    if (limits.speculate_ahead && selector->has_speculate())
      return who + "chooses for a layer before the tokens ahead have reached it";
  }
  for (const SlabOwner& owner : context.owners)
    if (owner.layout.mass_at & KVASIR_MASS_AT_DECODE || owner.layout.open_bytes ||
        owner.layout.refresh_tokens)
      return owner.plugin().id() + " keeps what decoded tokens attended to";
  return "";
}

void StrategyRun::refeed(Sequence& seq, uint32_t kv_len, uint32_t from_block, bool is_cut) {
  const uint32_t n_blocks = (seq.kv_len + geometry().block_size - 1) / geometry().block_size;
  for (const SlabOwner& owner : context.owners) {
    const bool rebuild = owner.plugin().seq_truncate(seq.id, kv_len) == KVASIR_REBUILD;
    const bool keeps_cut = is_cut && owner.layout.flags & KVASIR_LAYOUT_PER_TOKEN;
    update.refeed(owner, seq, rebuild ? 0 : (keeps_cut ? n_blocks : from_block));
  }
  for (auto& selector : pipeline.selectors)
    if (!context.owner_of(selector.get())) selector->seq_truncate(seq.id, kv_len);
  pipeline.storage->seq_truncate(seq.id, kv_len);
  if (pipeline.is_hybrid()) pipeline.window_storage->seq_truncate(seq.id, kv_len);
}

void StrategyRun::seq_open(Sequence& seq) {
  const SequenceId id = seq.id;
  seq.content = ContentHash(content_run, names_content ? geometry().block_size : 0);
  for (auto& selector : pipeline.selectors) selector->seq_open(id);
  if (pipeline.representative) pipeline.representative->seq_open(id);
  pipeline.storage->seq_open(id);
  if (pipeline.is_hybrid()) pipeline.window_storage->seq_open(id);
}

void StrategyRun::seq_fork(SequenceId parent, SequenceId child) {
  for (auto& selector : pipeline.selectors) selector->seq_fork(parent, child);
  if (pipeline.representative) pipeline.representative->seq_fork(parent, child);
  pipeline.storage->seq_fork(parent, child);
  if (pipeline.is_hybrid()) pipeline.window_storage->seq_fork(parent, child);
}

void StrategyRun::seq_close(SequenceId id) noexcept {
  for (auto& selector : pipeline.selectors) selector->seq_close(id);
  if (pipeline.representative) pipeline.representative->seq_close(id);
  if (binding->lists_stay) pipeline.attention->forget(id);
}

Counters& StrategyRun::counted() {
  store->count_transfers(counters.of(counters.latest_prefilled));
  return counters;
}

void StrategyRun::name_content(Sequence& seq, std::span<const int32_t> tokens,
                               uint32_t n_together) const {
  const auto has_gaps = [](const LayerState& layer) {
    return layer.packed.end != 0 || !layer.dead.empty();
  };
  const bool has_evicted = std::any_of(seq.layers.begin(), seq.layers.end(), has_gaps);
  const bool by_slot = pipeline.strategy.cache.positions.value == Positions::kSlot;
  const RopeConfig& rope = context.model.shape().rope;
  const bool by_length =
      rope.scaling == RopeScaling::kDynamicNtk && seq.prompt_end > rope.original_context;
  // A step that failed leaves tokens that were named and never computed.
  const bool is_off = seq.content.n_tokens() != seq.kv_len;
  // In hybrid mode rounding depends on what had left the window when a token was computed.
  if (has_evicted || by_slot || by_length || is_off || pipeline.is_hybrid() ||
      context.selects_in_prefill())
    seq.content.taint();
  seq.content.append(tokens, n_together);
}

void StrategyRun::release_step(LayerState& layer) {
  store->release_step(layer);
  for (PackedHead& head : layer.packed.heads) store->release_step(head);
}

}  // namespace kvasir
