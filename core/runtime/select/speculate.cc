// Selection for a later layer, ahead of its queries; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/select/select_stage.h"

namespace kvasir {

uint32_t SelectStage::speculation_target(const Pass& pass) const {
  if (c_.pipeline.selectors.empty()) return 0;
  const Selector& selector = *c_.pipeline.selectors[0];
  const uint32_t ahead = selector.limits().speculate_ahead;
  const uint32_t target = pass.layer + ahead;
  if (!ahead || !selector.has_speculate() || target >= c_.geometry.n_layers ||
      c_.dense_layer[target] || c_.group_leader[target] != target)
    return 0;
  for (const Piece& piece : pass.pieces)
    if (due(target, *piece.seq)) return target;
  return 0;
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
    alone.in.q = pass.in.q + piece.q_begin * q_width;
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
