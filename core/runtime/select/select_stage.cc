// Cadence and the chain of selectors; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/select_stage.h"

#include <algorithm>
#include <utility>

#include "core/runtime/step/guarded_call.h"

namespace kvasir {

// token_step if set, else the plugin's reuse_steps; both: the smaller.
bool SelectStage::due(uint32_t layer, const Sequence& seq) const {
  const LayerSelection& last = seq.layers[layer].selection;
  if (!last.valid || last.dense || last.contributed) return true;
  const uint32_t age = seq.decode_index - last.made_at;
  const uint32_t step = c_.cache.token_step.value;
  if (last.speculated && (age == 0 || !step)) return age > 0;
  uint64_t keep = step ? step : uint64_t{last.reuse_steps} + 1;
  if (step && last.reuse_steps) keep = std::min<uint64_t>(keep, uint64_t{last.reuse_steps} + 1);
  if (step && !last.reuse_steps) return seq.decode_index % step == 0 || age >= step;
  return age >= keep;
}

Choice SelectStage::begin_due(uint32_t layer, Piece piece) const {
  LayerSelection& selection = piece.seq->layers[layer].selection;
  const uint32_t step = c_.cache.token_step.value;
  if (!piece.prefills() && step && !selection.reuse_steps && piece.seq->decode_index % step != 0)
    piece.flags |= KVASIR_STEP_FORCED;
  return Choice::begin(c_, layer, piece, selection);
}

// What the leader of the group chose, as far as the layer's own restriction lets it; where nobody
// chose, all that this layer may reach.
const LayerSelection* SelectStage::follow(uint32_t layer, const Piece& piece,
                                          const LayerSelection& chosen) const {
  LayerState& state = piece.seq->layers[layer];
  if (state.restricted.empty()) return &chosen;
  const Candidates own = live_candidates(state, chosen.unit, {chosen.sink_end, chosen.window_begin},
                                         c_.geometry.block_size, c_.geometry.n_kv_heads);
  LayerSelection& out = state.selection;
  out = chosen;
  out.dense = false;
  out.standing.clear();
  out.heads.assign(c_.geometry.n_kv_heads, {});
  for (uint32_t head = 0; head < out.heads.size(); ++head) {
    const auto& reachable = own.heads[head].index;
    if (chosen.dense || chosen.unchosen) {
      out.heads[head].index = reachable;
      continue;
    }
    const HeadSelection& from = chosen.head(head);
    for (size_t i = 0; i < from.index.size(); ++i) {
      if (!std::binary_search(reachable.begin(), reachable.end(), from.index[i])) continue;
      out.heads[head].index.push_back(from.index[i]);
      for (uint32_t w = 0; w < chosen.width; ++w)
        out.heads[head].weight.push_back(from.weight[i * chosen.width + w]);
    }
  }
  return &out;
}

std::vector<const LayerSelection*> SelectStage::select(const Pass& pass) {
  const uint32_t layer = pass.layer;
  contribution_.lse.clear();
  unread_ = {};  // of a step that failed
  std::vector<const LayerSelection*> result(pass.pieces.size(), &everything_);
  if (c_.pipeline.selectors.empty() || c_.dense_layer[layer]) return result;
  std::vector<Choice> begun, resumed;
  for (size_t i = 0; i < pass.pieces.size(); ++i) {
    const Piece& piece = pass.pieces[i];
    if (piece.prefills() && !c_.selects_in_prefill()) continue;
    const uint32_t leader = piece.prefills() ? layer : c_.group_leader[layer];
    LayerSelection& selection = piece.seq->layers[leader].selection;
    result[i] = &selection;
    if (leader != layer) {
      ++c_.counters.of(piece.prefills()).reused;
      result[i] = follow(layer, piece, selection);
      continue;
    }
    if (!piece.prefills() && !due(layer, *piece.seq)) {
      keep(layer, piece, resumed);
      continue;
    }
    begun.push_back(begin_due(layer, piece));
  }
  if (!begun.empty()) run_chain(0, pass, begun);
  if (!resumed.empty()) run_chain(1, pass, resumed);
  return result;
}

void SelectStage::keep(uint32_t layer, const Piece& piece, std::vector<Choice>& resumed) {
  const LayerSelection& selection = piece.seq->layers[layer].selection;
  const bool ahead = selection.speculated && selection.made_at == piece.seq->decode_index;
  if (ahead && c_.pipeline.selectors.size() > 1) {
    resumed.push_back(resume(layer, piece));
    return;
  }
  if (!ahead) ++c_.counters.of(piece.prefills()).reused;
  if (!selection.standing.empty()) roll(layer, piece);
}

// Its first selector chose a layer ahead; the others choose from what it left.
Choice SelectStage::resume(uint32_t layer, const Piece& piece) const {
  LayerSelection& selection = piece.seq->layers[layer].selection;
  LayerSelection before = std::move(selection);
  Choice choice = Choice::begin(c_, layer, piece, selection);
  choice.bypassed = before.unchosen;
  choice.reuse_steps = before.reuse_steps;
  choice.narrow(std::move(before.heads), before.width, c_.geometry.n_kv_heads);
  return choice;
}

// Lists that said ALL or NONE speak of what has become a candidate since, too.
void SelectStage::roll(uint32_t layer, const Piece& piece) const {
  LayerSelection& selection = piece.seq->layers[layer].selection;
  LayerSelection before = std::exchange(selection, {});
  Choice choice = Choice::begin(c_, layer, piece, selection);
  choice.narrow(std::vector<HeadSelection>(before.standing), 0, c_.geometry.n_kv_heads);
  choice.bypassed = false;
  choice.reuse_steps = before.reuse_steps;
  choice.standing = std::move(before.standing);
  choice.finish(counters(choice));
  selection.made_at = before.made_at;
}

void SelectStage::run_chain(size_t first, const Pass& pass, std::vector<Choice>& choices) {
  for (size_t s = first; s < c_.pipeline.selectors.size(); ++s) {
    const Selector& selector = *c_.pipeline.selectors[s];
    const SelectorLimits& limits = selector.limits();
    std::vector<Choice*> todo;
    for (Choice& choice : choices) {
      if (choice.failed) continue;
      if (limits.unit == KVASIR_UNIT_TOKEN && choice.candidates.unit == KVASIR_UNIT_BLOCK)
        choice.candidates = expand_to_tokens(choice.candidates, c_.geometry.block_size);
      if (!selector.has_select()) continue;
      if (s > 0 && (limits.scope == KVASIR_SCOPE_SEQUENCE || c_.geometry.head_select_shared))
        share_candidates(choice.candidates);
      if (choice.piece.kv_len < c_.cache.dense_below_tokens.value) continue;
      if (c_.cache.bypass.value && choice.is_covered_by(limits)) continue;
      choice.bypassed = false;
      todo.push_back(&choice);
    }
    if (!todo.empty()) run_selector(s, pass, todo);
  }
  choices = set_aside(std::move(choices));
  for (Choice& choice : choices) choice.finish(counters(choice));
}

void SelectStage::run_selector(size_t index, const Pass& pass,
                               const std::vector<Choice*>& choices) {
  if (c_.faults.is_aside(index)) return fall_back(choices);
  const bool needs_keys = c_.pipeline.selectors[index]->desc().needs & KVASIR_NEED_KEYS;
  if (needs_keys) lease_all(c_, input_of(pass, choices).pass);
  std::vector<Choice*> todo;
  for (Choice* choice : choices) {
    if (needs_keys && choice->piece.has_failed()) {  // of its storage, not of the selector
      choice->failed = true;
      continue;
    }
    ++counters(*choice).selections;
    todo.push_back(choice);
  }
  if (!todo.empty()) ask(index, pass, todo);
}

// A call that fails, or asks for dense attention, for several sequences is made again for each.
// Selectors give the same answer to the same question, so that the others lose nothing.
void SelectStage::ask(size_t index, const Pass& pass, const std::vector<Choice*>& choices) {
  if (!can_stay(pass.layer, choices)) return ask_here(index, pass, choices);
  SelectorAnswer answer = caller_.select_there(index, input_of(pass, choices));
  if (!answer.ok()) return make_good(index, pass, answer, choices);
  for (Choice* choice : choices) choice->is_there = true;
  unread_ = {index, pass.with({}), {}, std::move(answer)};
}

void SelectStage::ask_here(size_t index, const Pass& pass, const std::vector<Choice*>& choices) {
  SelectorAnswer answer = caller_.select(index, input_of(pass, choices));
  if (!answer.ok()) return make_good(index, pass, answer, choices);
  for (size_t i = 0; i < choices.size(); ++i)
    take(index, answer.lists, static_cast<uint32_t>(i), *choices[i]);
  caller_.take_back(std::move(answer.lists));
}

void SelectStage::make_good(size_t index, const Pass& pass, const SelectorAnswer& answer,
                            const std::vector<Choice*>& choices) {
  if (choices.size() > 1) {
    for (Choice* choice : choices) ask_here(index, pass, {choice});
  } else if (answer.asks_dense) {
    fall_back(choices);
  } else {
    fault(index, "select", pass.layer, choices, answer.fault);
  }
}

SelectorInput SelectStage::input_of(const Pass& pass, const std::vector<Choice*>& choices) const {
  SelectorInput input{pass.with({}), {}, choices[0]->blocks};
  for (const Choice* choice : choices) {
    input.pass.pieces.push_back(choice->piece);
    input.candidates.push_back(&choice->candidates);
  }
  return input;
}

void SelectStage::take(size_t index, const ListBuffer& lists, uint32_t seq, Choice& choice) {
  if (choice.keeps_lists) return take_lists(lists, seq, choice);
  uint32_t width = 0;
  bool fallback = false;
  auto heads = heads_of(lists.view, seq, c_.geometry.n_q_heads, c_.geometry.n_kv_heads,
                        choice.candidates, &width, &fallback);
  if (fallback) return fall_back({&choice});
  bool standing = c_.pipeline.selectors.size() == 1 && width == 0;
  for (size_t list = seq * heads.size(); list < (seq + 1) * heads.size(); ++list)
    standing = standing && lists.flags[list] != KVASIR_LIST_LISTED;
  if (standing) choice.standing = heads;
  choice.narrow(std::move(heads), width, c_.geometry.n_kv_heads);
  const uint32_t reuse = lists.view.reuse_steps;
  choice.contributed = take_contribution(lists, choice.piece, c_.geometry, contribution_);
  choice.reuse_steps = index == 0 ? reuse : std::min(choice.reuse_steps, reuse);
}

// Where the strategy says on_fault = fail the sequences end, else the step is dense for them.
void SelectStage::fault(size_t index, const std::string& function, uint32_t layer,
                        const std::vector<Choice*>& choices, const std::string& text) {
  const Piece& first = choices[0]->piece;
  const auto report = [&] {
    c_.faults.report(index, function, layer, first.seq->id, text, "attending densely in this step");
  };
  if (!guard_piece(first, report))
    for (const Choice* choice : choices) choice->piece.seq->fail(first.seq->fault);
  fall_back(choices);
}

void SelectStage::fall_back(const std::vector<Choice*>& choices) {
  for (Choice* choice : choices) {
    choice->failed = true;
    ++counters(*choice).fallbacks;
  }
}

}  // namespace kvasir
