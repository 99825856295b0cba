// Sequences and steps; see engine.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "core/runtime/plan.h"
#include "core/runtime/saved_sequence.h"
#include "core/runtime/step_loop.h"

namespace kvasir {
namespace {

constexpr uint32_t kLogitRows = 16;  // rows of logits computed at a time for all positions

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

struct Engine::Impl {
  Impl(const Model& model_in, Pipeline pipeline, ThreadPool& pool_in, HostServices& services_in,
       const EngineOptions& options_in)
      : model(model_in),
        pool(pool_in),
        services(services_in),
        options(resolved(options_in, pipeline)),
        loop(model_in, options.max_step_tokens) {
    add(std::move(pipeline));
  }

  StrategyId add(Pipeline pipeline) {
    const StrategyRun* alike = nullptr;
    for (const auto& run : runs)
      if (!alike && can_share(pipeline, run->pipeline)) alike = run.get();
    runs.push_back(
        std::make_unique<StrategyRun>(model, std::move(pipeline), pool, services, options, alike));
    return static_cast<StrategyId>(runs.size() - 1);
  }
  Sequence& find(SequenceId id) const {
    const auto it = sequences.find(id);
    if (it == sequences.end())
      throw Error(ErrorKind::kInternal, "no sequence " + std::to_string(id));
    return *it->second;
  }
  // One that no step has failed in.
  Sequence& usable(SequenceId id) const {
    Sequence& seq = find(id);
    if (seq.fault) std::rethrow_exception(seq.fault);
    return seq;
  }
  StrategyRun& run_of(const Sequence& seq) const { return *runs[seq.strategy]; }

  // What a step makes of its items.
  struct Plan {
    std::vector<Lane> lanes;
    std::vector<Lane*> lane_of;  // [runs], null: no rows
    std::vector<TokenId> tokens;
    std::vector<uint32_t> q_begin;  // [items]
    std::vector<Sequence*> seq;     // [items], null: refused
  };
  Plan plan(std::span<const StepItem> items, std::vector<ItemResult>& results);
  void refuse_twice(std::span<const StepItem> items) const;
  void check(const Sequence& seq, std::span<const TokenId> tokens) const;
  Lane& lane(Plan& plan, StrategyId strategy);
  BatchRow row_of(Sequence& seq, uint32_t q_begin, uint32_t n) const;
  void add_followers(Plan& plan, const StepItem& item, Sequence& leader, const BatchRow& row,
                     ItemResult& result);
  void check_follower(const Sequence& leader, const Sequence& follower) const;
  void advance(Sequence& seq, std::span<const TokenId> tokens) const;
  void finish_prompt(Sequence& seq) const;
  void write_logits(std::span<const StepItem> items, const Plan& plan);

  const Model& model;
  ThreadPool& pool;
  HostServices& services;
  EngineOptions options;
  StepLoop loop;
  std::vector<std::unique_ptr<StrategyRun>> runs;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences;  // destroyed before the runs' storages
  SequenceId next_id = 1;
};

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
  run.seq_open(seq->id);
  const SequenceId id = seq->id;
  m.sequences[id] = std::move(seq);
  return id;
}

SequenceId Engine::fork(SequenceId parent_id) {
  Impl& m = *impl_;
  const Sequence& parent = m.usable(parent_id);
  StrategyRun& run = m.run_of(parent);
  auto child = std::make_unique<Sequence>(parent);
  child->id = m.next_id++;
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer)
    run.store->fork(parent.layers[layer], child->layers[layer], layer);
  run.seq_fork(parent_id, child->id);
  const SequenceId id = child->id;
  m.sequences[id] = std::move(child);
  return id;
}

void Engine::truncate(SequenceId id, uint32_t kv_len) {
  Sequence& seq = impl_->usable(id);
  StrategyRun& run = impl_->run_of(seq);
  if (kv_len >= seq.kv_len) return;
  const uint32_t block_size = run.geometry().block_size;
  const uint32_t n_blocks = (kv_len + block_size - 1) / block_size;
  const bool cut = kv_len % block_size != 0;
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
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer) {
    LayerState& state = seq.layers[layer];
    run.store->truncate(state, layer, kv_len);
    // Keep the selection if it was made at a token that survives the cut.
    if (kv_len <= seq.prompt_end || state.selection.made_at >= kv_len - seq.prompt_end)
      state.selection = {};
    state.final_blocks = std::min(state.final_blocks, kv_len / block_size);
    if (kv_len < seq.prompt_end) state.restricted.clear();
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
  seq.prompt_end = std::min(seq.prompt_end, kv_len);
  seq.prompt_begin = std::min(seq.prompt_begin, kv_len);
  seq.decode_index = kv_len - seq.prompt_end;
  for (auto& owner : run.context.owners) {
    Instance& plugin = owner.selector ? static_cast<Instance&>(*owner.selector)
                                      : static_cast<Instance&>(*owner.representative);
    const bool rebuild = plugin.seq_truncate(id, kv_len) == KVASIR_REBUILD;
    const bool refeed_cut = cut && !(owner.layout.flags & KVASIR_LAYOUT_PER_TOKEN);
    run.state.refeed(owner, seq, rebuild ? 0 : (refeed_cut ? n_blocks - 1 : n_blocks));
  }
  for (auto& selector : run.pipeline.selectors)
    if (!run.context.owner_of(selector.get())) selector->seq_truncate(id, kv_len);
  run.pipeline.storage->seq_truncate(id, kv_len);
}

void Engine::close(SequenceId id) {
  Impl& m = *impl_;
  Sequence& seq = m.find(id);
  StrategyRun& run = m.run_of(seq);
  for (LayerState& layer : seq.layers) run.release_step(layer);  // of a step that failed
  run.seq_close(id);
  m.sequences.erase(id);
  run.pipeline.storage->seq_close(id);
}

std::vector<std::byte> Engine::save(SequenceId id) {
  Sequence& seq = impl_->usable(id);
  if (seq.reads_prompt())
    throw input_error("sequence " + std::to_string(id) + " has read " +
                      std::to_string(seq.kv_len - seq.prompt_begin) + " of " +
                      std::to_string(seq.prompt_end - seq.prompt_begin) +
                      " tokens of its prompt: read it whole or end it, then save");
  return save_sequence(impl_->run_of(seq).context, seq);
}

SequenceId Engine::load(std::span<const std::byte> bytes, const std::string& name,
                        StrategyId strategy) {
  const SequenceId id = open(strategy);
  try {
    load_sequence(impl_->runs[strategy]->context, bytes, name, impl_->find(id));
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

void Engine::Impl::check(const Sequence& seq, std::span<const TokenId> tokens) const {
  if (seq.fault) std::rethrow_exception(seq.fault);
  const std::string name = "sequence " + std::to_string(seq.id);
  if (tokens.empty()) throw input_error(name + ": a step needs at least one token");
  const uint32_t left = seq.reads_prompt() ? seq.prompt_end - seq.kv_len : 1;
  if (tokens.size() > left)
    throw Error(ErrorKind::kInternal,
                name + (seq.reads_prompt() ? ": its prompt has " : " decodes one token: ") +
                    std::to_string(left) + " left, " + std::to_string(tokens.size()) +
                    " were given");
  if (uint64_t{seq.kv_len} + tokens.size() > options.max_context)
    throw input_error("the context of " + std::to_string(options.max_context) +
                      " tokens is full: raise -c");
  const uint32_t vocab = model.shape().vocab_size;
  for (const TokenId token : tokens)
    if (token < 0 || static_cast<uint32_t>(token) >= vocab)
      throw input_error("token id " + std::to_string(token) + " is outside the vocabulary of " +
                        std::to_string(vocab) + " tokens");
}

void Engine::Impl::refuse_twice(std::span<const StepItem> items) const {
  std::vector<SequenceId> ids;
  uint64_t n_tokens = 0;
  for (const StepItem& item : items) {
    n_tokens += item.tokens.size();
    ids.push_back(item.seq);
    ids.insert(ids.end(), item.followers.begin(), item.followers.end());
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end())
    throw Error(ErrorKind::kInternal,
                "sequence " + std::to_string(*twice) + " stands twice in one step");
  if (n_tokens > options.max_step_tokens)
    throw Error(ErrorKind::kInternal, "a step of " + std::to_string(n_tokens) +
                                          " tokens, but the engine was made for " +
                                          std::to_string(options.max_step_tokens));
}

Lane& Engine::Impl::lane(Plan& plan, StrategyId strategy) {
  if (!plan.lane_of[strategy]) plan.lane_of[strategy] = &plan.lanes.emplace_back(*runs[strategy]);
  return *plan.lane_of[strategy];
}

BatchRow Engine::Impl::row_of(Sequence& seq, uint32_t q_begin, uint32_t n) const {
  BatchRow row;
  row.seq = &seq;
  row.q_begin = q_begin;
  row.n_q = n;
  row.kv_len = seq.kv_len + n;
  row.phase = seq.reads_prompt() ? KVASIR_PHASE_PREFILL : KVASIR_PHASE_DECODE;
  if (seq.reads_prompt() && seq.kv_len == seq.prompt_begin) row.flags |= KVASIR_STEP_FIRST_PIECE;
  if (seq.reads_prompt() && row.kv_len == seq.prompt_end) row.flags |= KVASIR_STEP_LAST_PIECE;
  return row;
}

void Engine::Impl::check_follower(const Sequence& leader, const Sequence& follower) const {
  if (follower.fault) std::rethrow_exception(follower.fault);
  const auto refuse = [&](const char* why) {
    throw Error(ErrorKind::kInternal, "sequence " + std::to_string(follower.id) +
                                          " cannot read its prompt with sequence " +
                                          std::to_string(leader.id) + ": " + why);
  };
  if (!leader.reads_prompt() || !run_of(leader).can_lead(run_of(follower)))
    refuse("their strategies read prompts in different ways, or no prompt is read");
  if (leader.prompt_begin != follower.prompt_begin || leader.prompt_end != follower.prompt_end ||
      leader.tokens != follower.tokens)
    refuse("their tokens differ");
  for (size_t layer = 0; layer < leader.layers.size(); ++layer) {
    const LayerState &a = leader.layers[layer], &b = follower.layers[layer];
    bool same = a.dead.empty() && b.dead.empty() && a.blocks.size() == b.blocks.size();
    for (size_t i = 0; same && i < a.blocks.size(); ++i)
      same = a.blocks[i] == b.blocks[i] || !a.blocks[i]->sealed;
    if (!same) refuse("they do not share their blocks");
  }
}

void Engine::Impl::add_followers(Plan& plan, const StepItem& item, Sequence& leader,
                                 const BatchRow& row, ItemResult& result) {
  Lane& leading = lane(plan, leader.strategy);
  result.follower_errors.resize(item.followers.size());
  for (const SequenceId id : item.followers) {
    Sequence& seq = find(id);
    Lane* own = &lane(plan, seq.strategy);
    auto at = std::find_if(leading.followers.begin(), leading.followers.end(),
                           [&](const Lane::Followers& f) { return f.lane == own; });
    if (at == leading.followers.end())
      at = leading.followers.insert(at, Lane::Followers{own, {}, {}});
    at->rows.push_back(row);
    at->rows.back().seq = &seq;
    at->leaders.push_back(&leader);
    own->n_prefill += row.n_q;
  }
}

Engine::Impl::Plan Engine::Impl::plan(std::span<const StepItem> items,
                                      std::vector<ItemResult>& results) {
  refuse_twice(items);
  Plan plan;
  plan.lanes.reserve(runs.size());  // lanes point to each other
  plan.lane_of.resize(runs.size());
  plan.q_begin.resize(items.size());
  plan.seq.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Sequence& seq = find(items[i].seq);
    try {
      check(seq, items[i].tokens);
      for (const SequenceId follower : items[i].followers) check_follower(seq, find(follower));
    } catch (const Error&) {
      results[i].error = std::current_exception();
      results[i].is_lost = seq.fault != nullptr;
      continue;
    }
    plan.seq[i] = &seq;
    plan.q_begin[i] = static_cast<uint32_t>(plan.tokens.size());
    plan.tokens.insert(plan.tokens.end(), items[i].tokens.begin(), items[i].tokens.end());
    const BatchRow row =
        row_of(seq, plan.q_begin[i], static_cast<uint32_t>(items[i].tokens.size()));
    Lane& own = lane(plan, seq.strategy);
    own.rows.push_back(row);
    (row.prefills() ? own.n_prefill : own.n_decode) += row.n_q;
    add_followers(plan, items[i], seq, row, results[i]);
  }
  return plan;
}

void Engine::Impl::advance(Sequence& seq, std::span<const TokenId> tokens) const {
  if (!seq.reads_prompt()) ++seq.decode_index;
  seq.tokens.insert(seq.tokens.end(), tokens.begin(), tokens.end());
  seq.kv_len += static_cast<uint32_t>(tokens.size());
}

// The last tokens of all items in one product.
void Engine::Impl::write_logits(std::span<const StepItem> items, const Plan& plan) {
  const uint32_t vocab = model.shape().vocab_size, width = model.shape().d_model;
  std::vector<float> hidden, logits;
  std::vector<size_t> wanted;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!plan.seq[i] || plan.seq[i]->fault) continue;
    const auto n = static_cast<uint32_t>(items[i].tokens.size());
    if (items[i].all_logits) {
      logits.resize(uint64_t{std::min(n, kLogitRows)} * vocab);
      for (uint32_t at = 0; at < n; at += kLogitRows) {
        const uint32_t rows = std::min(kLogitRows, n - at);
        loop.logits(loop.hidden(plan.q_begin[i] + at), rows, logits.data());
        items[i].all_logits(plan.seq[i]->kv_len - n + at, rows, logits.data());
      }
    }
    if (items[i].logits.empty()) continue;
    const float* last = loop.hidden(plan.q_begin[i] + n - 1);
    hidden.insert(hidden.end(), last, last + width);
    wanted.push_back(i);
  }
  if (wanted.empty()) return;
  logits.resize(wanted.size() * vocab);
  loop.logits(hidden.data(), static_cast<uint32_t>(wanted.size()), logits.data());
  for (size_t i = 0; i < wanted.size(); ++i)
    std::copy_n(logits.data() + i * vocab, vocab, items[wanted[i]].logits.data());
}

std::vector<ItemResult> Engine::step(std::span<const StepItem> items) {
  Impl& m = *impl_;
  std::vector<ItemResult> results(items.size());
  Impl::Plan plan = m.plan(items, results);
  if (plan.tokens.empty()) return results;
  const auto each_sequence = [&](const auto& fn) {  // fn(sequence, item)
    for (size_t i = 0; i < items.size(); ++i) {
      if (!plan.seq[i]) continue;
      fn(*plan.seq[i], i);
      for (const SequenceId follower : items[i].followers) fn(m.find(follower), i);
    }
  };
  try {
    m.loop.run(plan.lanes, plan.tokens);
    each_sequence([&](Sequence& seq, size_t i) {
      if (!seq.fault) m.advance(seq, items[i].tokens);
    });
    m.loop.evict(plan.lanes);
    m.write_logits(items, plan);
  } catch (const std::exception&) {
    each_sequence([](Sequence& seq, size_t) { seq.fail(std::current_exception()); });
    throw;
  }
  each_sequence([&](Sequence& seq, size_t) {
    if (!seq.fault && seq.prompt_end == seq.kv_len) m.finish_prompt(seq);
  });
  for (size_t i = 0; i < items.size(); ++i) {
    if (!plan.seq[i]) continue;
    results[i].error = plan.seq[i]->fault;
    results[i].is_lost = results[i].error != nullptr;
    for (size_t f = 0; f < items[i].followers.size(); ++f)
      results[i].follower_errors[f] = m.find(items[i].followers[f]).fault;
  }
  m.loop.account(plan.lanes);
  return results;
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
  std::vector<StepItem> step_items;
  for (size_t i = 0; i < items.size(); ++i)
    step_items.push_back({.seq = items[i].seq,
                          .tokens = {&items[i].token, 1},
                          .logits = logits.subspan(i * vocab, vocab)});
  for (const ItemResult& result : step(step_items))
    if (result.error) std::rethrow_exception(result.error);
}

uint64_t Engine::kv_bytes(SequenceId id) const {
  const auto count = [](const BlockList& list) {
    return static_cast<uint64_t>(std::count_if(list.blocks.begin(), list.blocks.end(),
                                               [](const auto& block) { return block != nullptr; }));
  };
  const Sequence& seq = impl_->find(id);
  const StrategyRun& run = impl_->run_of(seq);
  uint64_t head_blocks = 0;
  for (const LayerState& layer : seq.layers) {
    head_blocks += count(layer) * run.geometry().n_kv_heads;
    for (const PackedHead& head : layer.packed.heads) head_blocks += count(head);
  }
  return head_blocks * run.binding->storage.block_bytes / run.geometry().n_kv_heads;
}

uint64_t Engine::sequence_bytes(StrategyId strategy, uint32_t n_tokens, uint32_t n_shared) const {
  const StrategyRun& run = *impl_->runs.at(strategy);
  return plan_sequence(*run.binding, run.pipeline, n_tokens, n_shared);
}

const Engagement& Engine::prefill_engagement(StrategyId strategy) const {
  return impl_->runs.at(strategy)->context.prefill;
}
const Engagement& Engine::decode_engagement(StrategyId strategy) const {
  return impl_->runs.at(strategy)->context.decode;
}
void Engine::reset_engagement() {
  for (auto& run : impl_->runs) run->context.prefill = run->context.decode = {};
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
