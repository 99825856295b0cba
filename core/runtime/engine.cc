// The step loop; see engine.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "core/runtime/attend_stage.h"
#include "core/runtime/binding.h"
#include "core/runtime/saved_sequence.h"
#include "core/runtime/select_stage.h"
#include "core/runtime/state_stage.h"

namespace kvasir {
namespace {

constexpr uint32_t kPageBlocks = 64;  // blocks per slab page
constexpr uint32_t kLogitRows = 16;   // rows of logits computed at a time for all positions

uint64_t now_nanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

struct Engine::Impl {
  Impl(const Model& model_in, Pipeline pipeline_in, ThreadPool& pool_in, HostServices& services_in,
       const EngineOptions& options_in)
      : model(model_in),
        pipeline(std::move(pipeline_in)),
        pool(pool_in),
        services(services_in),
        options(options_in) {
    bind();
    const ModelShape& s = model.shape();
    const uint64_t n = geometry.max_queries;
    h.resize(n * s.d_model);
    x.resize(n * s.d_model);
    q.resize(n * s.n_q_heads * s.head_dim);
    k.resize(n * s.n_kv_heads * s.head_dim);
    v.resize(n * s.n_kv_heads * s.v_head_dim);
    o.resize(n * s.n_q_heads * s.v_head_dim);
    positions.resize(n);
  }

  void bind();
  void add_owner(Representative* representative, Selector* selector, const kvasir_layout& layout);
  Sequence& find(SequenceId id) const;
  void release_step(LayerState& layer) {
    store->release_step(layer);
    for (PackedHead& head : layer.packed.heads) store->release_step(head);
  }
  void run_layer(uint32_t layer, const std::vector<BatchRow>& rows, bool prefill, uint32_t flags);
  void attend_rows(uint32_t layer, const std::vector<BatchRow>& rows, bool prefill, uint32_t flags);
  void rope(const std::vector<BatchRow>& rows, float* values, uint32_t heads) const;
  void speculate(uint32_t layer, const std::vector<BatchRow>& rows);
  void run_layers(const std::vector<BatchRow>& rows, bool prefill, uint32_t flags);
  template <class Fn>
  void timed(Engagement& phase, Fn&& fn);
  template <class Fn>
  void model_call(Fn&& fn) {
    const uint64_t begin = now_nanos();
    fn();
    context->counters->model_nanos += now_nanos() - begin;
  }

  const Model& model;
  Pipeline pipeline;
  ThreadPool& pool;
  HostServices& services;
  EngineOptions options;
  std::shared_ptr<const Binding> binding = bind_pipeline(model.shape(), pipeline, options);
  const kvasir_geometry& geometry = binding->geometry;
  std::unique_ptr<MemoryBridge> bridge;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<RunContext> context;
  std::unique_ptr<SelectStage> select_stage;
  std::unique_ptr<AttendStage> attend_stage;
  std::unique_ptr<StateStage> state_stage;
  uint32_t slice_tokens = 0;
  uint64_t block_bytes = 0;  // K and V of one block of one layer, all kv heads
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences;
  SequenceId next_id = 1;
  Engagement prefill_counters, decode_counters;
  std::vector<float> h, x, q, k, v, o, q_constant, q_target;
  std::vector<uint32_t> positions;
};

void Engine::Impl::bind() {
  block_bytes = binding->storage.block_bytes;
  const ModelShape& s = model.shape();
  bridge = std::make_unique<MemoryBridge>(*pipeline.storage);
  store = std::make_unique<BlockStore>(*pipeline.storage, *bridge, services, pool,
                                       geometry.block_size, s.n_kv_heads, s.head_dim, s.v_head_dim);
  context = std::make_unique<RunContext>(RunContext{model,
                                                    pipeline,
                                                    *store,
                                                    services,
                                                    pool,
                                                    pipeline.strategy.cache,
                                                    geometry,
                                                    {},
                                                    {},
                                                    {},
                                                    options.check_numerics,
                                                    &decode_counters,
                                                    {},
                                                    options.on_attend});
  if (pipeline.representative)
    add_owner(pipeline.representative.get(), nullptr, pipeline.representative->layout());
  for (auto& selector : pipeline.selectors) {
    if (selector->has_update()) add_owner(nullptr, selector.get(), selector->layout());
    const kvasir_sel_limits& limits = selector->limits();
    if (limits.flags & KVASIR_LIMIT_PREFILL_SELECT && limits.prefill_slice_tokens)
      slice_tokens = slice_tokens ? std::min(slice_tokens, limits.prefill_slice_tokens)
                                  : limits.prefill_slice_tokens;
  }
  context->faults.assign(pipeline.selectors.size(), 0);
  uint32_t sparse = 0, leader = 0;
  const uint32_t step = std::max(1u, pipeline.strategy.cache.layer_step.value);
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer) {
    const bool dense = binding->is_dense(layer);
    context->dense_layer.push_back(dense);
    if (!dense && sparse++ % step == 0) leader = layer;
    context->group_leader.push_back(dense ? layer : leader);
  }
  select_stage = std::make_unique<SelectStage>(*context);
  attend_stage = std::make_unique<AttendStage>(*context);
  state_stage = std::make_unique<StateStage>(*context);
}

void Engine::Impl::add_owner(Representative* representative, Selector* selector,
                             const kvasir_layout& layout) {
  context->owners.push_back(
      {representative, selector, layout,
       SlabLayout(layout, geometry.n_kv_heads, geometry.block_size, kPageBlocks, bridge.get())});
}

Sequence& Engine::Impl::find(SequenceId id) const {
  const auto it = sequences.find(id);
  if (it == sequences.end()) throw Error(ErrorKind::kInternal, "no sequence " + std::to_string(id));
  return *it->second;
}

template <class Fn>
void Engine::Impl::timed(Engagement& phase, Fn&& fn) {
  context->counters = &phase;
  const CallStats before = plugin_totals(pipeline);
  const uint64_t begin = now_nanos(), model_before = phase.model_nanos;
  const uint64_t copied_before = bridge->copied_bytes();
  fn();
  const uint64_t total = now_nanos() - begin;
  const CallStats after = plugin_totals(pipeline);
  phase.boundary_calls += after.calls - before.calls;
  phase.plugin_nanos += after.nanos - before.nanos;
  phase.total_nanos += total;
  phase.device_copy_bytes += bridge->copied_bytes() - copied_before;
  const uint64_t accounted = after.nanos - before.nanos + phase.model_nanos - model_before;
  phase.core_nanos += total > accounted ? total - accounted : 0;
}

// Positions are those of the tokens; the length that dynamic NTK scales with is the prompt's while
// it is read, so that the chunk size does not change the keys.
void Engine::Impl::rope(const std::vector<BatchRow>& rows, float* values, uint32_t heads) const {
  const uint32_t dim = geometry.head_dim;
  for (const BatchRow& row : rows)
    model.rope().apply(values + uint64_t{row.q_begin} * heads * dim, row.n_q, heads, dim,
                       {positions.data() + row.q_begin, row.n_q},
                       std::max(row.seq->prompt_end, row.kv_len));
}

void Engine::Impl::speculate(uint32_t layer, const std::vector<BatchRow>& rows) {
  const uint32_t target = select_stage->speculation_target(layer, rows);
  if (target == 0) return;
  const auto n = static_cast<uint32_t>(rows.size());
  q_target.resize(uint64_t{n} * geometry.n_q_heads * geometry.head_dim);
  model_call([&] {
    model.project_qkv(target, x.data(), n, q_target.data(), nullptr, nullptr);
    rope(rows, q_target.data(), geometry.n_q_heads);
  });
  select_stage->speculate(layer, target, rows, x.data(), q_target.data(), n);
}

void Engine::Impl::attend_rows(uint32_t layer, const std::vector<BatchRow>& rows, bool prefill,
                               uint32_t flags) {
  uint64_t n = 0;
  for (const BatchRow& row : rows) n = std::max<uint64_t>(n, row.q_begin + row.n_q);
  AttendStage::Queries queries{q.data(), binding->constant_positions ? q_constant.data() : nullptr,
                               n, positions.data()};
  const float* candidate_q = binding->constant_positions ? q_constant.data() : q.data();
  const auto selections = select_stage->select(layer, rows, candidate_q, n, prefill, flags);
  attend_stage->attend(layer, rows, selections, queries, prefill ? KVASIR_P3 : KVASIR_D2, flags,
                       o.data());
  state_stage->observe(layer, rows, *attend_stage, prefill, flags);
  state_stage->left_window(layer, rows, prefill ? KVASIR_P3 : KVASIR_D4, flags);
}

void Engine::Impl::run_layer(uint32_t layer, const std::vector<BatchRow>& rows, bool prefill,
                             uint32_t flags) {
  uint32_t n = 0;
  for (const BatchRow& row : rows) n = std::max(n, row.q_begin + row.n_q);
  model_call([&] { model.attn_norm(layer, h.data(), n, x.data()); });
  if (!prefill) speculate(layer, rows);
  model_call([&] {
    model.project_qkv(layer, x.data(), n, q.data(), k.data(), v.data());
    if (binding->constant_positions) {
      q_constant = q;
      const std::vector<uint32_t> at(n, pipeline.selectors[0]->limits().pos_const);
      model.rope().apply(q_constant.data(), n, geometry.n_q_heads, geometry.head_dim, at,
                         geometry.max_context);
    }
    rope(rows, q.data(), geometry.n_q_heads);
    if (geometry.k_state == KVASIR_K_ROTATED) rope(rows, k.data(), geometry.n_kv_heads);
  });
  for (const BatchRow& row : rows)
    store->append(row.seq->layers[layer], layer, row.first_pos(),
                  k.data() + uint64_t{row.q_begin} * geometry.n_kv_heads * geometry.head_dim,
                  v.data() + uint64_t{row.q_begin} * geometry.n_kv_heads * geometry.v_dim, row.n_q);
  state_stage->appended(layer, rows, prefill ? KVASIR_P2 : KVASIR_D2, flags);
  if (prefill)
    for (const BatchRow& row : rows) state_stage->prefill_queries(layer, row, q.data(), n, flags);
  if (prefill && slice_tokens && select_stage->selects_in_prefill()) {
    for (const BatchRow& row : rows)
      for (uint32_t at = 0; at < row.n_q; at += slice_tokens) {
        const uint32_t len = std::min(slice_tokens, row.n_q - at);
        attend_rows(layer, {{row.seq, row.q_begin + at, len, row.first_pos() + at + len}}, prefill,
                    flags);
      }
  } else {
    attend_rows(layer, rows, prefill, flags);
  }
  if (prefill && (flags & KVASIR_STEP_LAST_CHUNK)) state_stage->prompt_end(layer, rows, flags);
  for (const BatchRow& row : rows) release_step(row.seq->layers[layer]);
  model_call([&] {
    model.attn_output(layer, o.data(), n, h.data());
    model.ffn(layer, h.data(), n);
  });
}

void Engine::Impl::run_layers(const std::vector<BatchRow>& rows, bool prefill, uint32_t flags) {
  for (const BatchRow& row : rows)
    std::iota(positions.begin() + row.q_begin, positions.begin() + row.q_begin + row.n_q,
              row.first_pos());
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer)
    run_layer(layer, rows, prefill, flags);
  ++context->counters->steps;
  context->counters->layer_steps += geometry.n_layers;
}

Engine::Engine(const Model& model, Pipeline pipeline, ThreadPool& pool, HostServices& services,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(pipeline), pool, services, options)) {}
Engine::~Engine() = default;

SequenceId Engine::open() {
  Impl& m = *impl_;
  auto seq = std::make_unique<Sequence>();
  seq->id = m.next_id++;
  seq->layers.resize(m.geometry.n_layers);
  for (LayerState& layer : seq->layers) layer.slabs.resize(m.context->owners.size());
  for (auto& selector : m.pipeline.selectors) selector->seq_open(seq->id);
  if (m.pipeline.representative) m.pipeline.representative->seq_open(seq->id);
  m.pipeline.storage->seq_open(seq->id);
  const SequenceId id = seq->id;
  m.sequences[id] = std::move(seq);
  return id;
}

SequenceId Engine::fork(SequenceId parent_id) {
  Impl& m = *impl_;
  const Sequence& parent = m.find(parent_id);
  auto child = std::make_unique<Sequence>(parent);
  child->id = m.next_id++;
  for (uint32_t layer = 0; layer < m.geometry.n_layers; ++layer) {
    m.store->fork(parent.layers[layer], child->layers[layer], layer);
  }
  for (auto& selector : m.pipeline.selectors) selector->seq_fork(parent_id, child->id);
  if (m.pipeline.representative) m.pipeline.representative->seq_fork(parent_id, child->id);
  m.pipeline.storage->seq_fork(parent_id, child->id);
  const SequenceId id = child->id;
  m.sequences[id] = std::move(child);
  return id;
}

void Engine::truncate(SequenceId id, uint32_t kv_len) {
  Impl& m = *impl_;
  Sequence& seq = m.find(id);
  if (kv_len >= seq.kv_len) return;
  const uint32_t n_blocks = (kv_len + m.geometry.block_size - 1) / m.geometry.block_size;
  const bool cut = kv_len % m.geometry.block_size != 0;
  for (const LayerState& layer : seq.layers)
    for (const auto& head : layer.dead) {
      const bool lost = std::find(head.begin() + std::min<ptrdiff_t>(kv_len, std::ssize(head)),
                                  head.end(), true) != head.end();
      if (lost || kv_len < layer.packed.end)
        throw input_error("cannot truncate to " + std::to_string(kv_len) +
                          " tokens: the strategy has evicted tokens up to " +
                          std::to_string(std::max<size_t>(head.size(), layer.packed.end)) +
                          "; start anew");
    }
  for (uint32_t layer = 0; layer < m.geometry.n_layers; ++layer) {
    LayerState& state = seq.layers[layer];
    m.store->truncate(state, layer, kv_len);
    // A choice of a token that stays is what the next one would have reused.
    if (kv_len <= seq.prompt_end || state.selection.made_at >= kv_len - seq.prompt_end)
      state.selection = {};
    state.final_blocks = std::min(state.final_blocks, kv_len / m.geometry.block_size);
    if (kv_len < seq.prompt_end) state.restricted.clear();
    const uint32_t n_units =
        state.restricted_unit == KVASIR_UNIT_BLOCK ? kv_len / m.geometry.block_size : kv_len;
    for (auto& reachable : state.restricted)
      std::erase_if(reachable, [&](uint32_t unit) { return unit >= n_units; });
    state.restricted_end = std::min(state.restricted_end, n_units);
    for (size_t owner = 0; owner < m.context->owners.size(); ++owner)
      m.context->owners[owner].slab.truncate(state.slabs[owner], kv_len);
  }
  seq.kv_len = kv_len;
  seq.tokens.resize(kv_len);
  seq.prompt_end = std::min(seq.prompt_end, kv_len);
  seq.prompt_begin = std::min(seq.prompt_begin, kv_len);
  seq.decode_index = kv_len - seq.prompt_end;
  for (auto& owner : m.context->owners) {
    Instance& plugin = owner.selector ? static_cast<Instance&>(*owner.selector)
                                      : static_cast<Instance&>(*owner.representative);
    const bool rebuild = plugin.seq_truncate(id, kv_len) == KVASIR_REBUILD;
    const bool refeed_cut = cut && !(owner.layout.flags & KVASIR_LAYOUT_PER_TOKEN);
    m.state_stage->refeed(owner, seq, rebuild ? 0 : (refeed_cut ? n_blocks - 1 : n_blocks));
  }
  for (auto& selector : m.pipeline.selectors)
    if (!m.context->owner_of(selector.get())) selector->seq_truncate(id, kv_len);
  m.pipeline.storage->seq_truncate(id, kv_len);
}

void Engine::close(SequenceId id) {
  Impl& m = *impl_;
  Sequence& seq = m.find(id);
  for (LayerState& layer : seq.layers) m.release_step(layer);  // of a step that failed
  for (auto& selector : m.pipeline.selectors) selector->seq_close(id);
  if (m.pipeline.representative) m.pipeline.representative->seq_close(id);
  m.sequences.erase(id);
  m.pipeline.storage->seq_close(id);
}

std::vector<std::byte> Engine::save(SequenceId id) {
  return save_sequence(*impl_->context, impl_->find(id));
}

SequenceId Engine::load(std::span<const std::byte> bytes, const std::string& name) {
  const SequenceId id = open();
  try {
    load_sequence(*impl_->context, bytes, name, impl_->find(id));
  } catch (...) {
    close(id);
    throw;
  }
  return id;
}

uint32_t Engine::kv_len(SequenceId id) const { return impl_->find(id).kv_len; }
std::span<const TokenId> Engine::tokens(SequenceId id) const { return impl_->find(id).tokens; }

uint32_t Engine::prefill(SequenceId id, std::span<const TokenId> tokens,
                         std::span<float> last_logits, const PrefillHooks& hooks) {
  Impl& m = *impl_;
  Sequence& seq = m.find(id);
  if (tokens.empty()) throw input_error("the prompt is empty: give at least one token");
  if (uint64_t{seq.kv_len} + tokens.size() > m.options.max_context)
    throw input_error("the prompt needs " + std::to_string(seq.kv_len + tokens.size()) +
                      " tokens of context, but -c gives " + std::to_string(m.options.max_context) +
                      ": raise -c or shorten the prompt");
  const auto total = static_cast<uint32_t>(tokens.size());
  const uint32_t chunk = std::max(1u, m.pipeline.strategy.cache.chunk_size.value);
  const uint32_t vocab = m.model.shape().vocab_size, width = m.model.shape().d_model;
  seq.prompt_begin = seq.kv_len;
  seq.prompt_end = seq.kv_len + total;
  for (LayerState& layer : seq.layers) {
    layer.restricted.clear();
    layer.selection = {};
  }
  uint32_t done = 0;
  m.timed(m.prefill_counters, [&] {
    while (done < total) {
      const uint32_t n = std::min(chunk, total - done);
      const uint32_t flags = (done == 0 ? KVASIR_STEP_FIRST_CHUNK : 0u) |
                             (done + n == total ? KVASIR_STEP_LAST_CHUNK : 0u);
      const std::vector<BatchRow> rows{{&seq, 0, n, seq.kv_len + n}};
      m.model_call([&] { m.model.embed(tokens.subspan(done, n), m.h.data()); });
      m.run_layers(rows, true, flags);
      seq.tokens.insert(seq.tokens.end(), tokens.begin() + done, tokens.begin() + done + n);
      seq.kv_len += n;
      m.state_stage->evict(rows, KVASIR_PLAN_AT_CHUNK_END, KVASIR_P5, flags);
      if (done + n == total)
        m.state_stage->evict(rows, KVASIR_PLAN_AT_PROMPT_END, KVASIR_P5, flags);
      if (hooks.all_logits) {
        std::vector<float> logits(uint64_t{std::min(n, kLogitRows)} * vocab);
        for (uint32_t at = 0; at < n; at += kLogitRows) {
          const uint32_t rows_now = std::min(kLogitRows, n - at);
          m.model_call(
              [&] { m.model.logits(m.h.data() + uint64_t{at} * width, rows_now, logits.data()); });
          hooks.all_logits(seq.kv_len - n + at, rows_now, logits.data());
        }
      }
      done += n;
      if (done == total && !last_logits.empty())
        m.model_call(
            [&] { m.model.logits(m.h.data() + uint64_t{n - 1} * width, 1, last_logits.data()); });
      if (hooks.progress && !hooks.progress(done, total)) break;
    }
  });
  seq.prompt_end = seq.kv_len;
  seq.decode_index = 0;
  for (LayerState& layer : seq.layers) layer.selection = {};
  return done;
}

void Engine::decode(std::span<const DecodeItem> items, std::span<float> logits) {
  Impl& m = *impl_;
  const auto n = static_cast<uint32_t>(items.size());
  if (n == 0) return;
  if (n > m.options.max_sequences)
    throw input_error("a decode step of " + std::to_string(n) +
                      " sequences, but the engine was made for " +
                      std::to_string(m.options.max_sequences));
  std::vector<BatchRow> rows;
  std::vector<TokenId> tokens;
  for (const DecodeItem& item : items) {
    Sequence& seq = m.find(item.seq);
    if (seq.kv_len >= m.options.max_context)
      throw input_error("the context of " + std::to_string(m.options.max_context) +
                        " tokens is full: raise -c");
    for (const BatchRow& row : rows)
      if (row.seq == &seq)
        throw Error(ErrorKind::kInternal,
                    "sequence " + std::to_string(item.seq) + " stands twice in one decode step");
    rows.push_back({&seq, static_cast<uint32_t>(rows.size()), 1, seq.kv_len + 1});
    tokens.push_back(item.token);
  }
  m.timed(m.decode_counters, [&] {
    m.model_call([&] { m.model.embed(tokens, m.h.data()); });
    m.run_layers(rows, false, 0);
    for (uint32_t i = 0; i < n; ++i) {
      rows[i].seq->tokens.push_back(tokens[i]);
      ++rows[i].seq->kv_len;
      ++rows[i].seq->decode_index;
    }
    m.state_stage->evict(rows, KVASIR_PLAN_AT_STEP_END, KVASIR_D5, 0);
    m.model_call([&] { m.model.logits(m.h.data(), n, logits.data()); });
  });
}

uint64_t Engine::kv_bytes(SequenceId id) const {
  const auto count = [](const BlockList& list) {
    return static_cast<uint64_t>(std::count_if(list.blocks.begin(), list.blocks.end(),
                                               [](const auto& block) { return block != nullptr; }));
  };
  uint64_t head_blocks = 0;
  for (const LayerState& layer : impl_->find(id).layers) {
    head_blocks += count(layer) * impl_->geometry.n_kv_heads;
    for (const PackedHead& head : layer.packed.heads) head_blocks += count(head);
  }
  return head_blocks * impl_->block_bytes / impl_->geometry.n_kv_heads;
}

const Engagement& Engine::prefill_engagement() const { return impl_->prefill_counters; }
const Engagement& Engine::decode_engagement() const { return impl_->decode_counters; }
void Engine::reset_engagement() {
  impl_->prefill_counters = {};
  impl_->decode_counters = {};
}
double Engine::crossing_nanos() {
  constexpr size_t kRepeats = 501;
  std::vector<uint64_t> nanos(kRepeats);
  const std::vector<kvasir_block_key> none;
  for (uint64_t& n : nanos) {
    const uint64_t begin = now_nanos();
    impl_->pipeline.storage->drop(none, KVASIR_DROP_UNREF);
    n = now_nanos() - begin;
  }
  std::nth_element(nanos.begin(), nanos.begin() + kRepeats / 2, nanos.end());
  return static_cast<double>(nanos[kRepeats / 2]);
}
const Pipeline& Engine::pipeline() const { return impl_->pipeline; }
const kvasir_geometry& Engine::geometry() const { return impl_->geometry; }

}  // namespace kvasir
