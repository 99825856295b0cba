// Selection for a later layer, ahead of its queries; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/select/select_stage.h"
#include "kernels/topk.h"

namespace kvasir {
namespace {

// The n best of each kv head.
std::vector<HeadSelection> best_of(const Candidates& candidates, const float* score, uint32_t n,
                                   uint32_t n_kv_heads) {
  std::vector<HeadSelection> out(n_kv_heads);
  std::vector<uint64_t> scratch;
  for (uint32_t head = 0; head < n_kv_heads; ++head) {
    const uint64_t n_scores = candidates.count(head);
    std::vector<uint32_t>& best = out[head].index;
    best.resize(std::min<uint64_t>(n, n_scores));
    scratch.resize(kernels::top_k_scratch_bytes(n_scores) / sizeof(uint64_t));
    kernels::top_k(score, n_scores, n, best.data(), scratch.data());
    score += n_scores;
    for (uint32_t& place : best)
      place = candidates.listed ? candidates.heads[head].index[place] : candidates.begin + place;
  }
  return out;
}

}  // namespace

bool SelectStage::begins_selection(uint32_t layer) const {
  return layer < c_.geometry.n_layers && !c_.dense_layer[layer] && c_.group_leader[layer] == layer;
}

bool SelectStage::reads_input(uint32_t layer) const {
  const auto& selectors = c_.pipeline.selectors;
  return begins_selection(layer) &&
         std::any_of(selectors.begin(), selectors.end(), [](const auto& selector) {
           return (selector->desc().needs & KVASIR_NEED_INPUT) != 0;
         });
}

uint32_t SelectStage::speculation_target(const Pass& pass) const {
  if (c_.pipeline.selectors.empty()) return 0;
  const Selector& selector = *c_.pipeline.selectors[0];
  const uint32_t target = pass.layer + selector.limits().speculate_ahead;
  if (target == pass.layer || !selector.has_speculate() || !begins_selection(target)) return 0;
  const bool is_due = std::any_of(pass.pieces.begin(), pass.pieces.end(),
                                  [&](const Piece& piece) { return due(target, *piece.seq); });
  return is_due ? target : 0;
}

bool SelectStage::foresees(uint32_t layer) const {
  const Foresee how = c_.cache.foresee.value;
  return can_foresee(c_.pipeline, c_.geometry, how) && begins_selection(layer + 1) &&
         (how == Foresee::kChoose || c_.store.takes_ahead());
}

bool SelectStage::foresees(const Pass& pass) const {
  const uint32_t target = pass.layer + 1;
  const bool chooses = c_.cache.foresee.value == Foresee::kChoose;
  return foresees(pass.layer) &&
         std::any_of(pass.pieces.begin(), pass.pieces.end(), [&](const Piece& piece) {
           return (chooses || piece.seq->layers[target].lacked) && due(target, *piece.seq);
         });
}

void SelectStage::foresee(const Pass& pass) {
  if (c_.cache.foresee.value == Foresee::kChoose)
    choose_ahead(pass, pass.layer + 1);
  else
    read_ahead(pass, pass.layer + 1);
}

// What the layer attends with: its own query is not asked, but where this fails.
void SelectStage::choose_ahead(const Pass& pass, uint32_t target) {
  if (c_.faults.is_aside(0)) return;
  Pass asked{target, {}, pass.in};
  std::vector<Choice> begun;
  for (const Piece& piece : pass.pieces)
    if (due(target, *piece.seq)) begun.push_back(begin_due(target, piece));
  run_chain(0, asked, begun);
  std::vector<Piece> pieces;
  std::vector<ListNeeds> foreseen;
  for (const Choice& choice : begun) {
    LayerSelection& made = *choice.out;
    made.speculated = !made.dense;
    LayerState& state = choice.piece.seq->layers[target];
    pieces.push_back(choice.piece);
    foreseen.push_back({&state, needed_by(made, c_.geometry.block_size, c_.geometry.n_kv_heads,
                                          state.blocks.size())});
  }
  if (c_.store.takes_ahead())
    together_or_alone(pieces, foreseen, [&](auto some) { c_.store.prefetch(some); });
}

// The layer's own query comes later and chooses anew: here nothing but time is at stake. So of
// layers that lacked nothing in the step before nothing is foreseen.
void SelectStage::read_ahead(const Pass& pass, uint32_t target) {
  if (c_.faults.is_aside(0)) return;
  Pass asked{target, {}, pass.in};
  for (const Piece& piece : pass.pieces)
    if (std::exchange(piece.seq->layers[target].lacked, false)) asked.pieces.push_back(piece);
  std::vector<LayerSelection> made(asked.pieces.size());
  std::vector<Choice> choices = begin_speculation(asked, target, made);
  if (choices.empty()) return;
  asked.pieces.clear();
  std::vector<const Candidates*> candidates;
  for (const Choice& choice : choices) {
    asked.pieces.push_back(choice.piece);
    candidates.push_back(&choice.candidates);
  }
  const uint32_t n =
      scores_that_count(*c_.pipeline.selectors[0], *c_.pipeline.representative, c_.geometry);
  Scores scores;
  try {
    scores = caller_.score(asked, candidates, n);
  } catch (const PluginError&) {
    return;  // the layer itself meets it again, and answers it
  }
  std::vector<ListNeeds> foreseen;
  Engagement uncounted;
  for (size_t i = 0; i < choices.size(); ++i) {
    Choice& choice = choices[i];
    const float* const score = scores.value.data() + scores.offsets[i * scores.n_heads];
    choice.narrow(best_of(choice.candidates, score, n, c_.geometry.n_kv_heads), 0,
                  c_.geometry.n_kv_heads);
    choice.finish(uncounted);
    LayerState& state = choice.piece.seq->layers[target];
    foreseen.push_back({&state, needed_by(*choice.out, c_.geometry.block_size,
                                          c_.geometry.n_kv_heads, state.blocks.size())});
  }
  together_or_alone(asked.pieces, foreseen, [&](auto some) { c_.store.prefetch(some); });
}

bool SelectStage::chooses_nothing(uint32_t layer, const Piece& piece) const {
  const auto& selectors = c_.pipeline.selectors;
  if (c_.dense_layer[layer] ||
      std::none_of(selectors.begin(), selectors.end(),
                   [](const auto& selector) { return selector->has_select(); }))
    return true;
  return piece.prefills() ? !c_.selects_in_prefill()
                          : piece.kv_len < c_.cache.dense_below_tokens.value;
}

// Not for layers that have lacked no block so far, nor for tokens whose K and V are given, few of
// which attend. Of a prompt's last piece nothing is read for the next step: what the prompt leaves
// is evicted first.
void SelectStage::read_dense_ahead(uint32_t layer, const std::vector<Piece>& of_lane) {
  const bool is_next_step = layer + 1 == c_.geometry.n_layers;
  const uint32_t target = is_next_step ? 0 : layer + 1;
  std::vector<Piece> pieces;
  std::vector<ListNeeds> needs;
  for (const Piece& piece : of_lane) {
    if (piece.given || !chooses_nothing(target, piece) || !piece.seq->layers[target].lacked)
      continue;
    if (is_next_step && piece.prefills() && piece.flags & KVASIR_STEP_LAST_PIECE) continue;
    pieces.push_back(piece);
    needs.push_back(c_.store.needs_all(piece.seq->layers[target]));
  }
  if (!pieces.empty())
    together_or_alone(pieces, needs, [&](auto some) { c_.store.prefetch(some); });
}

void SelectStage::speculate(const Pass& pass, uint32_t target) {
  if (speculate_together(pass, target)) return;
  const size_t x_width = c_.model.shape().d_model;
  const size_t q_width = size_t{c_.geometry.n_q_heads} * c_.geometry.head_dim;
  for (const Piece& piece : pass.pieces) {
    Pass alone{pass.layer, {piece}, {}};
    alone.pieces[0].q_begin = 0;
    alone.in.n = 1;
    alone.in.x = pass.in.x + piece.q_begin * x_width;
    alone.in.q = pass.in.q.on_host() + piece.q_begin * q_width;
    speculate_together(alone, target);
  }
}

bool SelectStage::speculate_together(const Pass& pass, uint32_t target) {
  if (c_.faults.is_aside(0)) return true;
  std::vector<LayerSelection> made(pass.pieces.size());
  std::vector<Choice> choices = begin_speculation(pass, target, made);
  if (choices.empty()) return true;
  std::vector<Choice*> todo;
  for (Choice& choice : choices) todo.push_back(&choice);
  SelectorAnswer answer = caller_.speculate(input_of(pass, todo), target);
  if (!answer.ok() && choices.size() > 1) return false;
  if (answer.asks_dense) return true;
  if (!answer.fault.empty()) {
    fault(0, "speculate", pass.layer, todo, answer.fault);
    return true;
  }
  std::vector<ListNeeds> foreseen(choices.size());
  for (size_t i = 0; i < choices.size(); ++i)
    foreseen[i] = take_speculation(answer.lists, static_cast<uint32_t>(i), target, choices[i]);
  caller_.take_back(std::move(answer.lists));
  if (!c_.store.moves()) return true;
  std::vector<Piece> pieces;
  for (const Choice& choice : choices) pieces.push_back(choice.piece);
  together_or_alone(pieces, foreseen, [&](auto some) { c_.store.prefetch(some); });
  return true;
}

std::vector<Choice> SelectStage::begin_speculation(const Pass& pass, uint32_t target,
                                                   std::vector<LayerSelection>& made) const {
  const SelectorLimits& limits = c_.pipeline.selectors[0]->limits();
  std::vector<Choice> choices;
  for (const Piece& piece : pass.pieces) {
    if (!due(target, *piece.seq)) continue;
    Choice choice = Choice::begin(c_, target, piece, made[choices.size()]);
    if (piece.kv_len < c_.cache.dense_below_tokens.value) continue;
    if (choice.candidates.max_count() == 0) continue;
    if (c_.cache.bypass.value && choice.is_covered_by(limits)) continue;
    choice.bypassed = false;
    choices.push_back(std::move(choice));
  }
  return choices;
}

ListNeeds SelectStage::take_speculation(const ListBuffer& lists, uint32_t seq, uint32_t target,
                                        Choice& choice) {
  uint32_t width = 0;
  bool fallback = false;
  auto heads = heads_of(lists.view, seq, c_.geometry.n_q_heads, c_.geometry.n_kv_heads,
                        choice.candidates, &width, &fallback);
  if (fallback) return {};
  choice.narrow(std::move(heads), width, c_.geometry.n_kv_heads);
  choice.finish(counters(choice));
  LayerSelection& made = *choice.out;
  LayerState& state = choice.piece.seq->layers[target];
  ListNeeds foreseen{&state, {}};
  if (c_.store.moves())
    foreseen.blocks =
        needed_by(made, c_.geometry.block_size, c_.geometry.n_kv_heads, state.blocks.size());
  if (!(lists.view.flags & KVASIR_SELECTION_FINAL)) return foreseen;
  ++c_.counters.decode.selections;  // in place of select() of the target
  made.reuse_steps = 0;
  made.speculated = true;
  state.selection = std::move(made);
  return foreseen;
}

}  // namespace kvasir
