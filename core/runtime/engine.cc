// Strategies and sequences of an engine; see engine.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/engine_impl.h"

#include <algorithm>
#include <chrono>

#include "core/runtime/plan.h"
#include "core/runtime/sequence/saved_sequence.h"
#include "core/runtime/sequence/sliding_window.h"

namespace kvasir {
namespace {

uint32_t step_tokens(const EngineOptions& options, const Pipeline& pipeline) {
  return std::max({1u, options.max_step_tokens, options.max_sequences,
                   pipeline.strategy.cache.chunk_size.value});
}

EngineOptions resolved(EngineOptions options, const Pipeline& pipeline) {
  options.max_step_tokens = step_tokens(options, pipeline);
  return options;
}

}  // namespace

std::string ItemResult::text() const {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

Engine::Impl::Impl(const Model& model_in, Pipeline pipeline, ThreadPool& pool_in,
                   HostServices& services_in, const EngineOptions& options_in)
    : model(model_in),
      pool(pool_in),
      services(services_in),
      options(resolved(options_in, pipeline)),
      loop(model_in, options.max_step_tokens) {
  add(std::move(pipeline));
}

Engine::Engine(const Model& model, Pipeline pipeline, ThreadPool& pool, HostServices& services,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(pipeline), pool, services, options)) {}
Engine::~Engine() = default;

StrategyId Engine::add_strategy(Pipeline pipeline) { return impl_->add(std::move(pipeline)); }

bool Engine::can_follow(StrategyId leader, StrategyId follower) const {
  return impl_->runs.at(leader)->can_lead(*impl_->runs.at(follower));
}

SequenceId Engine::open(StrategyId strategy) {
  Impl& m = *impl_;
  StrategyRun& run = *m.runs.at(strategy);
  auto seq = std::make_unique<Sequence>();
  seq->id = m.next_id++;
  seq->strategy = strategy;
  seq->layers.resize(run.geometry().n_layers);
  for (LayerState& layer : seq->layers) layer.slabs.resize(run.context.owners.size());
  run.seq_open(*seq);
  const SequenceId id = seq->id;
  m.sequences[id] = std::move(seq);
  return id;
}

SequenceId Engine::fork(SequenceId parent) { return impl_->fork(impl_->usable(parent)); }

SequenceId Engine::Impl::fork(const Sequence& parent) {
  StrategyRun& run = run_of(parent);
  auto child = std::make_unique<Sequence>(parent);
  child->id = next_id++;
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer) {
    const LayerState& from = parent.layers[layer];
    LayerState& to = child->layers[layer];
    run.store->fork(from, to, layer);
    for (size_t head = 0; head < from.packed.heads.size(); ++head)
      run.store->share(from.packed.heads[head], to.packed.heads[head]);
  }
  run.seq_fork(parent.id, child->id);
  const SequenceId id = child->id;
  sequences[id] = std::move(child);
  return id;
}

void Engine::truncate(SequenceId id, uint32_t kv_len) {
  impl_->truncate(impl_->usable(id), kv_len);
}

void Engine::Impl::truncate(Sequence& seq, uint32_t kv_len) const {
  StrategyRun& run = run_of(seq);
  if (kv_len >= seq.kv_len) return;
  check_sliding_windows(seq, kv_len);
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
  try {
    cut(run, seq, kv_len);
  } catch (...) {  // some layers are cut, others are not
    seq.fail(std::current_exception());
    throw;
  }
}

void Engine::Impl::check_sliding_windows(const Sequence& seq, uint32_t kv_len) const {
  const RunContext& c = run_of(seq).context;
  for (uint32_t layer = 0; layer < c.geometry.n_layers && kv_len > 0; ++layer) {
    const uint32_t window = c.sliding_window(layer);
    if (window == 0 || seq.layers[layer].blocks[first_seen(kv_len, window) / c.geometry.block_size])
      continue;
    throw input_error("cannot truncate to " + std::to_string(kv_len) + " tokens: layer " +
                      std::to_string(layer) + " has a sliding window of " + std::to_string(window) +
                      " tokens and keeps nothing behind it; start anew");
  }
}

void Engine::Impl::cut(StrategyRun& run, Sequence& seq, uint32_t kv_len) const {
  const uint32_t block_size = run.geometry().block_size;
  const uint32_t n_blocks = (kv_len + block_size - 1) / block_size;
  const bool is_inside = kv_len % block_size != 0;
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer) {
    LayerState& state = seq.layers[layer];
    run.store->truncate(state, layer, kv_len);
    for (auto& head : state.dead) head.resize(std::min<size_t>(head.size(), kv_len));
    for (auto& head : state.live) std::erase_if(head, [&](uint32_t t) { return t >= kv_len; });
    // Keep the selection if it was made at a token that survives the cut.
    if (kv_len <= seq.prompt_end || state.selection.made_at >= kv_len - seq.prompt_end)
      state.selection = {};
    state.final_blocks = std::min(state.final_blocks, kv_len / block_size);
    if (kv_len < seq.prompt_end ||
        kv_len + 1 < run.pipeline.strategy.cache.dense_below_tokens.value)
      state.restricted.clear();
    const uint32_t n_units =
        state.restricted_unit == KVASIR_UNIT_BLOCK ? kv_len / block_size : kv_len;
    for (auto& reachable : state.restricted)
      std::erase_if(reachable, [&](uint32_t unit) { return unit >= n_units; });
    state.restricted_end = std::min(state.restricted_end, n_units);
    for (size_t owner = 0; owner < run.context.owners.size(); ++owner)
      run.context.owners[owner].slab.truncate(state.slabs[owner], kv_len);
  }
  seq.kv_len = kv_len;
  seq.tokens.resize(kv_len);
  seq.content.truncate(kv_len);
  seq.prompt_end = std::min(seq.prompt_end, kv_len);
  seq.prompt_begin = std::min(seq.prompt_begin, kv_len);
  seq.decode_index = kv_len - seq.prompt_end;
  run.refeed(seq, kv_len, is_inside ? n_blocks - 1 : n_blocks, is_inside);
}

void Engine::close(SequenceId id) {
  impl_->drop_drafts(id);
  impl_->close(id);
}

void Engine::Impl::close(SequenceId id) {
  Sequence& seq = find(id);
  StrategyRun& run = run_of(seq);
  const SequenceId known_as = seq.id;  // to plugins: another one once drafts were accepted
  run.seq_close(known_as);
  {
    const BlockStore::LetGoTogether together(*run.store);
    for (LayerState& layer : seq.layers) run.release_step(layer);  // of a step that failed
    sequences.erase(id);
  }
  run.pipeline.storage->seq_close(known_as);
  if (run.pipeline.is_hybrid()) run.pipeline.window_storage->seq_close(known_as);
}

std::string Engine::cannot_verify(StrategyId strategy) const {
  return impl_->runs.at(strategy)->cannot_verify();
}
std::string Engine::cannot_recompute(StrategyId strategy) const {
  return impl_->runs.at(strategy)->cannot_recompute();
}

std::vector<std::byte> Engine::save(SequenceId id) {
  std::vector<std::byte> all;
  save(id, [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  });
  return all;
}

void Engine::save(SequenceId id, const ByteSink& sink) {
  Sequence& seq = impl_->usable(id);
  if (seq.reads_prompt())
    throw input_error("sequence " + std::to_string(id) + " has read " +
                      std::to_string(seq.kv_len - seq.prompt_begin) + " of " +
                      std::to_string(seq.prompt_end - seq.prompt_begin) +
                      " tokens of its prompt: read it whole or end it, then save");
  save_sequence(impl_->run_of(seq).context, seq, sink);
}

SequenceId Engine::load(std::span<const std::byte> bytes, const std::string& name,
                        StrategyId strategy) {
  const SequenceId id = open(strategy);
  try {
    load_sequence(impl_->runs[strategy]->context, bytes, name, impl_->find(id));
    impl_->find(id).content.taint();
  } catch (...) {
    close(id);
    throw;
  }
  return id;
}

uint32_t Engine::kv_len(SequenceId id) const { return impl_->find(id).kv_len; }
std::span<const TokenId> Engine::tokens(SequenceId id) const { return impl_->find(id).tokens; }
uint32_t Engine::max_step_tokens() const { return impl_->options.max_step_tokens; }
uint32_t Engine::vocab_size() const { return impl_->model.shape().vocab_size; }

void Engine::begin_prompt(SequenceId id, uint32_t n_tokens) {
  Sequence& seq = impl_->usable(id);
  if (n_tokens == 0) throw input_error("the prompt is empty: give at least one token");
  if (seq.reads_prompt())
    throw Error(ErrorKind::kInternal,
                "sequence " + std::to_string(id) + " reads a prompt already: end it first");
  if (uint64_t{seq.kv_len} + n_tokens > impl_->options.max_context)
    throw input_error("the prompt needs " + std::to_string(uint64_t{seq.kv_len} + n_tokens) +
                      " tokens of context, but -c gives " +
                      std::to_string(impl_->options.max_context) +
                      ": raise -c or shorten the prompt");
  seq.prompt_begin = seq.kv_len;
  seq.prompt_end = seq.kv_len + n_tokens;
  for (LayerState& layer : seq.layers) {
    layer.restricted.clear();
    layer.selection = {};
  }
}

uint32_t Engine::prompt_left(SequenceId id) const {
  const Sequence& seq = impl_->find(id);
  return seq.reads_prompt() ? seq.prompt_end - seq.kv_len : 0;
}

void Engine::end_prompt(SequenceId id) { impl_->finish_prompt(impl_->usable(id)); }

void Engine::Impl::finish_prompt(Sequence& seq) const {
  seq.prompt_end = seq.kv_len;
  seq.decode_index = 0;
  for (LayerState& layer : seq.layers) layer.selection = {};
}

uint32_t Engine::prefill(SequenceId id, std::span<const TokenId> tokens,
                         std::span<float> last_logits, const PrefillHooks& hooks) {
  const auto total = static_cast<uint32_t>(std::min<size_t>(tokens.size(), UINT32_MAX));
  begin_prompt(id, total);
  const Sequence& seq = impl_->find(id);
  const uint32_t chunk = std::min(
      max_step_tokens(), std::max(1u, pipeline(seq.strategy).strategy.cache.chunk_size.value));
  uint32_t done = 0;
  while (done < total) {
    const uint32_t n = std::min(chunk, total - done);
    StepItem item{.seq = id, .tokens = tokens.subspan(done, n), .all_logits = hooks.all_logits};
    if (done + n == total) item.logits = last_logits;
    const auto results = step({&item, 1});
    if (results[0].error) std::rethrow_exception(results[0].error);
    done += n;
    if (hooks.progress && !hooks.progress(done, total)) break;
  }
  if (done < total) end_prompt(id);
  return done;
}

void Engine::decode(std::span<const DecodeItem> items, std::span<float> logits) {
  const size_t vocab = impl_->model.shape().vocab_size;
  if (logits.size() < items.size() * vocab)
    throw Error(ErrorKind::kInternal, "decode() has room for the logits of " +
                                          std::to_string(logits.size() / vocab) + " of " +
                                          std::to_string(items.size()) + " sequences");
  std::vector<StepItem> step_items;
  for (size_t i = 0; i < items.size(); ++i)
    step_items.push_back({.seq = items[i].seq,
                          .tokens = {&items[i].token, 1},
                          .logits = logits.subspan(i * vocab, vocab)});
  for (const ItemResult& result : step(step_items))
    if (result.error) std::rethrow_exception(result.error);
}

uint64_t Engine::read_kv(SequenceId id, uint32_t layer, std::span<const uint32_t> positions,
                         float* k, float* v) {
  Sequence& seq = impl_->readable(id);
  StrategyRun& run = impl_->run_of(seq);
  const std::string name = "sequence " + std::to_string(id) + ": ";
  if (layer >= run.geometry().n_layers)
    throw Error(ErrorKind::kInternal, name + "there is no layer " + std::to_string(layer));
  Impl::check_ascending(seq, positions, 0, seq.kv_len);
  LayerState& state = seq.layers[layer];
  if (!has_layer(id, layer))
    throw Error(ErrorKind::kInternal,
                name + "layer " + std::to_string(layer) + " was not restored yet");
  const uint32_t block_size = run.geometry().block_size;
  for (const uint32_t pos : positions)
    if (!state.blocks[pos / block_size])
      throw input_error(name + "layer " + std::to_string(layer) + " has given up the token at " +
                        std::to_string(pos) + ": read the prompt anew");
  const uint64_t n_fetched = run.store->read_tokens(state, positions, k, v);
  run.release_step(state);
  return n_fetched;
}

uint64_t Engine::kv_bytes(SequenceId id) const {
  const Sequence& seq = impl_->find(id);
  const StrategyRun& run = impl_->run_of(seq);
  const auto count = [](const BlockList& list, const BlockStore* store) {
    return static_cast<uint64_t>(
        std::count_if(list.blocks.begin(), list.blocks.end(),
                      [&](const auto& block) { return block && block->store == store; }));
  };
  uint64_t head_blocks = 0, window_blocks = 0;
  for (const LayerState& layer : seq.layers) {
    head_blocks += count(layer, run.store.get()) * run.geometry().n_kv_heads;
    if (run.window_store) window_blocks += count(layer, run.window_store.get());
    for (const PackedHead& head : layer.packed.heads) head_blocks += count(head, run.store.get());
  }
  return head_blocks * run.binding->storage.block_bytes / run.geometry().n_kv_heads +
         window_blocks * run.binding->window_storage.block_bytes;
}

MemoryBytes Engine::sequence_bytes(StrategyId strategy, uint32_t n_tokens,
                                   uint32_t n_shared) const {
  const StrategyRun& run = *impl_->runs.at(strategy);
  return plan_sequence(*run.binding, run.pipeline, n_tokens, n_shared);
}

const Engagement& Engine::prefill_engagement(StrategyId strategy) const {
  return impl_->runs.at(strategy)->counted().prefill;
}
const Engagement& Engine::decode_engagement(StrategyId strategy) const {
  return impl_->runs.at(strategy)->counted().decode;
}
uint64_t Engine::device_bytes_read(StrategyId strategy, const Engagement& counted) const {
  const StrategyRun& run = *impl_->runs.at(strategy);
  const auto on_device = [](uint32_t mem_kind, uint64_t bytes) {
    return is_host_memory(mem_kind) ? 0 : bytes;
  };
  const auto& formats = run.binding->formats;
  const uint64_t of_window = counted.window_kv_bytes_read;
  uint64_t bytes = on_device(formats.front().mem_kind, counted.kv_bytes_read - of_window) +
                   on_device(formats.back().mem_kind, of_window);
  if (const auto& representative = run.pipeline.representative)
    bytes += on_device(representative->layout().mem_kind, counted.representative_bytes_read);
  return bytes;
}
void Engine::reset_engagement() {
  for (auto& run : impl_->runs) run->counted().prefill = run->counters.decode = {};
}

double Engine::crossing_nanos() {
  constexpr size_t kRepeats = 501;
  std::vector<std::chrono::nanoseconds> nanos(kRepeats);
  const std::vector<kvasir_block_key> none;
  for (auto& n : nanos) {
    const auto begin = std::chrono::steady_clock::now();
    impl_->runs[0]->pipeline.storage->drop(none, KVASIR_DROP_UNREF);
    n = std::chrono::steady_clock::now() - begin;
  }
  std::nth_element(nanos.begin(), nanos.begin() + kRepeats / 2, nanos.end());
  return static_cast<double>(nanos[kRepeats / 2].count());
}

const Pipeline& Engine::pipeline(StrategyId strategy) const {
  return impl_->runs.at(strategy)->pipeline;
}
const kvasir_geometry& Engine::geometry(StrategyId strategy) const {
  return impl_->runs.at(strategy)->geometry();
}

}  // namespace kvasir
