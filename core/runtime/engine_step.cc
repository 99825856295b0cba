// From items to pieces, through the layers, and back to items; see engine.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/runtime/engine_impl.h"

namespace kvasir {
namespace {

// Tokens of an item that go through the layers.
uint64_t queries_of(const StepItem& item) {
  return item.recompute.empty() ? item.tokens.size() : item.recompute.size();
}
// Whether the sequence holds the item's tokens afterwards.
bool adds_tokens(const StepItem& item) { return item.recompute.empty() || item.placing; }

}  // namespace

void Engine::Impl::check(const Sequence& seq, const StepItem& item) const {
  const std::span<const TokenId> tokens = item.tokens;
  const std::string name = "sequence " + std::to_string(seq.id);
  if (tokens.empty()) throw input_error(name + ": a step needs at least one token");
  const bool verifies = tokens.size() > 1 || !item.parents.empty();
  if (seq.reads_prompt() && (tokens.size() > seq.prompt_end - seq.kv_len || !item.parents.empty()))
    throw Error(ErrorKind::kInternal,
                name + ": its prompt has " + std::to_string(seq.prompt_end - seq.kv_len) +
                    " tokens left, " + std::to_string(tokens.size()) + " were given");
  if (!seq.reads_prompt() && verifies) check_verify(seq, item);
  check_logits(item, !seq.reads_prompt() && verifies ? tokens.size() : 1);
  if (uint64_t{seq.kv_len} + tokens.size() > options.max_context)
    throw input_error("the context of " + std::to_string(options.max_context) +
                      " tokens is full: raise -c");
  for (const TokenId token : tokens)
    if (!model.has_token(token))
      throw input_error("token id " + std::to_string(token) + " is outside the vocabulary of " +
                        std::to_string(model.shape().vocab_size) + " tokens");
}

void Engine::Impl::check_logits(const StepItem& item, size_t n_tokens) const {
  if (item.logits.empty() || item.logits.size() >= n_tokens * model.shape().vocab_size) return;
  throw Error(ErrorKind::kInternal, "logits of " + std::to_string(n_tokens) + " tokens need " +
                                        std::to_string(n_tokens * model.shape().vocab_size) +
                                        " floats, " + std::to_string(item.logits.size()) +
                                        " were given");
}

void Engine::Impl::check_given(const Sequence& seq, const StepItem& item, size_t n_items) const {
  if (!item.given_turn.empty() && (!item.given || item.given_turn.size() != item.tokens.size()))
    throw Error(ErrorKind::kInternal, "given_turn stands beside `given`, a number for each token");
  if (!item.given) return;
  const std::string name = "sequence " + std::to_string(seq.id) + ": ";
  if (!seq.reads_prompt())
    throw Error(ErrorKind::kInternal, name + "projections are given for tokens of a prompt only");
  if (n_items > 1 || !item.logits.empty() || item.all_logits || item.narrow)
    throw Error(ErrorKind::kInternal,
                name + "an item whose projections are given is alone in its step, without logits");
}

void Engine::Impl::check_ascending(const Sequence& seq, std::span<const uint32_t> positions,
                                   uint32_t begin, uint32_t end) {
  for (size_t i = 0; i < positions.size(); ++i)
    if (positions[i] < begin || positions[i] >= end || (i > 0 && positions[i] <= positions[i - 1]))
      throw Error(ErrorKind::kInternal, "sequence " + std::to_string(seq.id) + ": position " +
                                            std::to_string(positions[i]) +
                                            " is not ascending, or not in " +
                                            std::to_string(begin) + ".." + std::to_string(end));
}

void Engine::Impl::check_recompute(const Sequence& seq, const StepItem& item,
                                   size_t n_items) const {
  const std::string why = run_of(seq).cannot_recompute();
  if (!why.empty())
    throw input_error(why + ": its tokens cannot be computed again, read the prompt anew");
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorKind::kInternal, "sequence " + std::to_string(seq.id) + ": " + text);
  };
  if (!item.parents.empty() || !item.followers.empty() || item.all_logits)
    refuse("what is computed again takes no parents, followers or all_logits");
  if (item.narrow && n_items > 1) refuse("a recomputation that narrows is alone in its step");
  if (item.placing) return check_placing(seq, item, n_items);
  if (!item.tokens.empty()) refuse("what is computed again takes no tokens");
  check_logits(item, 1);
  if (seq.reads_prompt()) refuse("its prompt is not read whole");
  check_ascending(seq, item.recompute, 0, seq.kv_len);
}

// Tokens are those of a prompt, and check() has its say, too.
void Engine::Impl::check_placing(const Sequence& seq, const StepItem& item, size_t n_items) const {
  const std::string name = "sequence " + std::to_string(seq.id) + ": ";
  if (!seq.reads_prompt())
    throw Error(ErrorKind::kInternal, name + "K and V are placed for tokens of a prompt only");
  if (n_items > 1 || item.given || !item.placing->load)
    throw Error(ErrorKind::kInternal, name +
                                          "an item that is placed is alone in its step, and "
                                          "says how to load it");
  if (!item.placing->turn.empty() && item.placing->turn.size() != item.tokens.size())
    throw Error(ErrorKind::kInternal, name + "Placing::turn has a number for each token");
  check(seq, item);
  check_ascending(seq, item.recompute, seq.kv_len,
                  seq.kv_len + static_cast<uint32_t>(item.tokens.size()));
}

// What is wrong with the step as a whole.
void Engine::Impl::refuse_what_is_wrong(std::span<const StepItem> items) const {
  std::vector<SequenceId> ids;
  uint64_t n_tokens = 0;
  for (const StepItem& item : items) {
    n_tokens += queries_of(item);
    ids.push_back(item.seq);
    ids.insert(ids.end(), item.followers.begin(), item.followers.end());
  }
  for (const SequenceId id : ids) find(id);
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

Piece Engine::Impl::piece_of(Sequence& seq, uint32_t q_begin, uint32_t n) const {
  Piece piece;
  piece.seq = &seq;
  piece.q_begin = q_begin;
  piece.n_q = n;
  piece.kv_len = seq.kv_len + n;
  piece.phase = seq.reads_prompt() ? KVASIR_PHASE_PREFILL : KVASIR_PHASE_DECODE;
  if (seq.reads_prompt() && seq.kv_len == seq.prompt_begin) piece.flags |= KVASIR_STEP_FIRST_PIECE;
  if (seq.reads_prompt() && piece.kv_len == seq.prompt_end) piece.flags |= KVASIR_STEP_LAST_PIECE;
  return piece;
}

void Engine::Impl::check_followers(const Sequence& leader, const StepItem& item) const {
  std::vector<StrategyId> strategies;
  for (const SequenceId id : item.followers) {
    const Sequence& follower = find(id);
    check_follower(leader, follower);
    if (std::find(strategies.begin(), strategies.end(), follower.strategy) != strategies.end())
      throw Error(ErrorKind::kInternal, "sequence " + std::to_string(id) +
                                            " is the second of its strategy to follow: fork the "
                                            "first one instead");
    strategies.push_back(follower.strategy);
  }
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
    const bool was_led =  // or both were, by one that has ended
        follower.led_to == leader.kv_len &&
        (follower.led_by == leader.id ||
         (leader.led_to == leader.kv_len && follower.led_by == leader.led_by));
    for (size_t i = 0; same && i < a.blocks.size(); ++i)
      same =
          a.blocks[i] == b.blocks[i] || (was_led && !a.blocks[i]->sealed && !b.blocks[i]->sealed);
    if (!same) refuse("they do not share their blocks");
  }
}

void Engine::Impl::add_followers(Plan& plan, const StepItem& item, Sequence& leader,
                                 const Piece& piece, ItemResult& result) {
  Lane& leading = lane(plan, leader.strategy);
  result.follower_errors.resize(item.followers.size());
  for (const SequenceId id : item.followers) {
    Sequence& seq = find(id);
    Lane* own = &lane(plan, seq.strategy);
    auto at = std::find_if(leading.followers.begin(), leading.followers.end(),
                           [&](const Lane::Followers& f) { return f.lane == own; });
    if (at == leading.followers.end())
      at = leading.followers.insert(at, Lane::Followers{own, {}, {}});
    at->pieces.push_back(piece);
    at->pieces.back().seq = &seq;
    at->leaders.push_back(&leader);
    own->n_prefill += piece.n_q;
    own->n_followed += piece.n_q;
  }
}

Engine::Impl::Plan Engine::Impl::plan(std::span<const StepItem> items,
                                      std::vector<ItemResult>& results) {
  refuse_what_is_wrong(items);
  Plan plan;
  for (const StepItem& item : items) plan.n_queries += queries_of(item);
  plan.lanes.reserve(runs.size());  // lanes point to each other
  plan.lane_of.resize(runs.size());
  plan.items.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    Plan::Done& done = plan.items[i];
    Sequence& seq = *sequences.at(item.seq);  // refuse_what_is_wrong() has looked
    try {
      usable(item.seq);
      if (!item.recompute.empty())
        check_recompute(seq, item, items.size());
      else
        check(seq, item);
      check_given(seq, item, items.size());
      check_followers(seq, item);
      const bool verifies = item.tokens.size() > 1 || !item.parents.empty();
      if (!seq.reads_prompt() && verifies) add_drafts(plan, item, done);
    } catch (const std::exception&) {
      results[i].error = std::current_exception();
      results[i].is_lost = seq.fault != nullptr;
      continue;
    }
    done.seq = &seq;
    if (!done.leaves.empty()) continue;
    if (!item.recompute.empty()) {
      add_recompute(plan, item, done);
      continue;
    }
    const auto at = static_cast<uint32_t>(plan.tokens.size());
    for (uint32_t t = 0; t < item.tokens.size(); ++t) done.query.push_back(at + t);
    plan.tokens.insert(plan.tokens.end(), item.tokens.begin(), item.tokens.end());
    Piece piece = piece_of(seq, at, static_cast<uint32_t>(item.tokens.size()));
    piece.given = static_cast<bool>(item.given);
    piece.given_to = item.given_to;
    Lane& own = lane(plan, seq.strategy);
    own.pieces.push_back(piece);
    (piece.prefills() ? own.n_prefill : own.n_decode) += piece.n_q;
    add_followers(plan, item, seq, piece, results[i]);
  }
  return plan;
}

void Engine::Impl::add_recompute(Plan& plan, const StepItem& item, Plan::Done& done) {
  const auto at = static_cast<uint32_t>(plan.tokens.size());
  const auto n = static_cast<uint32_t>(item.recompute.size());
  done.query = {at};
  Lane::Redo redo;
  redo.piece.seq = done.seq;
  redo.piece.q_begin = at;
  redo.piece.n_q = n;
  redo.piece.kv_len = done.seq->kv_len + static_cast<uint32_t>(item.tokens.size());
  redo.piece.phase = KVASIR_PHASE_PREFILL;
  redo.positions.assign(item.recompute.begin(), item.recompute.end());
  redo.narrow = &item.narrow;
  redo.placing = item.placing;
  redo.first_position = item.placing ? done.seq->kv_len : item.recompute.front();
  for (const uint32_t pos : item.recompute)
    plan.tokens.push_back(item.placing ? item.tokens[pos - done.seq->kv_len]
                                       : done.seq->tokens[pos]);
  Lane& own = lane(plan, done.seq->strategy);
  own.redone.push_back(std::move(redo));
  own.n_prefill += n;
}

void Engine::Impl::advance(Sequence& seq, std::span<const TokenId> tokens) const {
  const auto n = static_cast<uint32_t>(tokens.size());
  if (!seq.reads_prompt()) seq.decode_index += n;
  seq.tokens.insert(seq.tokens.end(), tokens.begin(), tokens.end());
  seq.kv_len += n;
}

std::vector<uint32_t> Engine::Impl::queries_of_logits(std::span<const StepItem> items,
                                                      const Plan& plan) {
  std::vector<uint32_t> queries;
  for (size_t i = 0; i < items.size(); ++i) {
    const Plan::Done& done = plan.items[i];
    if (!done.seq || (items[i].logits.empty() && !items[i].all_logits)) continue;
    if (!items[i].recompute.empty()) {
      for (uint32_t q = 0; q < items[i].recompute.size(); ++q) queries.push_back(done.query[0] + q);
    } else if (items[i].all_logits || !done.leaves.empty()) {
      queries.insert(queries.end(), done.query.begin(), done.query.end());
    } else {
      queries.push_back(done.query.back());
    }
  }
  std::sort(queries.begin(), queries.end());
  return queries;
}

// The last tokens of all items, and every token that is to be verified, in one product.
void Engine::Impl::write_logits(std::span<const StepItem> items, const Plan& plan) {
  constexpr uint32_t kLogitTokens = StepBuffers::kLogitTokens;
  const uint32_t vocab = model.shape().vocab_size, width = model.shape().d_model;
  std::vector<float> hidden;
  std::vector<float*> to;
  for (size_t i = 0; i < items.size(); ++i) {
    const Plan::Done& done = plan.items[i];
    if (!done.seq || done.seq->fault) continue;
    const bool verifies = !done.leaves.empty();
    const auto n = static_cast<uint32_t>(items[i].tokens.size());
    for (uint32_t at = 0; items[i].all_logits && at < n; at += kLogitTokens) {
      const uint32_t n_now = std::min(kLogitTokens, n - at);
      hidden.clear();
      loop.hidden(std::span(done.query).subspan(at, n_now), hidden);
      items[i].all_logits(verifies ? at : done.seq->kv_len - n + at, n_now,
                          loop.logits(hidden.data(), n_now).data());
    }
  }
  hidden.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    const Plan::Done& done = plan.items[i];
    if (!done.seq || done.seq->fault || items[i].logits.empty()) continue;
    std::vector<uint32_t> queries{done.query.back()};
    if (!done.leaves.empty()) queries = done.query;
    if (!items[i].recompute.empty()) {
      const uint32_t left = queries_left(plan, *done.seq);
      if (left == 0) continue;  // all were narrowed away
      queries = {done.query[0] + left - 1};
    }
    loop.hidden(queries, hidden);
    for (size_t q = 0; q < queries.size(); ++q) to.push_back(items[i].logits.data() + q * vocab);
  }
  for (size_t at = 0; at < to.size(); at += kLogitTokens) {
    const size_t n_now = std::min<size_t>(kLogitTokens, to.size() - at);
    const std::span<const float> logits =
        loop.logits(hidden.data() + at * width, static_cast<uint32_t>(n_now));
    for (size_t i = 0; i < n_now; ++i) std::copy_n(logits.data() + i * vocab, vocab, to[at + i]);
  }
}

uint32_t Engine::Impl::queries_left(const Plan& plan, const Sequence& seq) {
  for (const Lane& lane : plan.lanes)
    for (const Lane::Redo& redo : lane.redone)
      if (redo.piece.seq == &seq) return redo.piece.n_q;
  return 0;
}

// A decoded token has seen what its strategy let it see: what comes behind it has no name. Nor has
// what is given or placed.
void Engine::Impl::name_content(std::span<const StepItem> items, const Plan& plan) const {
  const auto n = model.tokens_are_independent() ? 0u : static_cast<uint32_t>(plan.tokens.size());
  for (const Lane& lane : plan.lanes)
    for (const Piece& piece : lane.pieces)
      if (piece.decodes() || piece.given) piece.seq->content.taint();
  for (const Lane& lane : plan.lanes)
    for (const Lane::Redo& redo : lane.redone)
      if (redo.placing) redo.piece.seq->content.taint();
  for (size_t i = 0; i < items.size(); ++i) {
    const Sequence* seq = plan.items[i].seq;
    if (!seq || !seq->reads_prompt()) continue;
    run_of(*seq).name_content(find(items[i].seq), items[i].tokens, n);
    for (const SequenceId follower : items[i].followers) find(follower).content = seq->content;
  }
}

std::vector<ItemResult> Engine::step(std::span<const StepItem> items) {
  Impl& m = *impl_;
  std::vector<ItemResult> results(items.size());
  Impl::Plan plan = m.plan(items, results);
  if (plan.tokens.empty()) return results;
  const auto each_sequence = [&](const auto& fn) {  // fn(sequence, item), but forks of drafts
    for (size_t i = 0; i < items.size(); ++i) {
      if (!plan.items[i].seq || !plan.items[i].leaves.empty()) continue;
      fn(*plan.items[i].seq, items[i]);
      for (const SequenceId follower : items[i].followers) fn(m.find(follower), items[i]);
    }
  };
  m.name_content(items, plan);
  try {
    if (items[0].given)
      m.loop.run_given(plan.lanes, static_cast<uint32_t>(plan.tokens.size()), items[0].given,
                       items[0].given_turn);
    else
      m.loop.run(plan.lanes, plan.tokens, Impl::queries_of_logits(items, plan));
    each_sequence([&](Sequence& seq, const StepItem& item) {
      if (!seq.fault && adds_tokens(item)) m.advance(seq, item.tokens);
    });
    for (size_t i = 0; i < items.size(); ++i) m.advance_drafts(items[i], plan.items[i], results[i]);
    m.loop.evict(plan.lanes);
    m.write_logits(items, plan);
  } catch (const std::exception&) {
    each_sequence([](Sequence& seq, const StepItem&) { seq.fail(std::current_exception()); });
    for (size_t i = 0; i < items.size(); ++i)
      if (!plan.items[i].leaves.empty()) m.drop_drafts(items[i].seq);
    throw;
  }
  each_sequence([&](Sequence& seq, const StepItem& item) {
    if (adds_tokens(item) && !seq.fault && seq.prompt_end == seq.kv_len) m.finish_prompt(seq);
  });
  for (size_t i = 0; i < items.size(); ++i) {
    const Impl::Plan::Done& done = plan.items[i];
    if (!done.seq || !done.leaves.empty()) continue;
    results[i].error = done.seq->fault;
    results[i].is_lost = results[i].error != nullptr;
    for (size_t f = 0; f < items[i].followers.size(); ++f) {
      Sequence& follower = m.find(items[i].followers[f]);
      follower.led_by = done.seq->id;
      follower.led_to = follower.kv_len;
      results[i].follower_errors[f] = follower.fault;
    }
  }
  m.loop.account(plan.lanes);
  for (size_t i = 0; i < items.size(); ++i)
    if (results[i].error && !plan.items[i].leaves.empty()) m.drop_drafts(items[i].seq);
  return results;
}

}  // namespace kvasir
