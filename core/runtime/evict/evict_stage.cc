// Eviction; see evict_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/evict/evict_stage.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/runtime/evict/packing.h"
#include "core/runtime/step/guarded_call.h"
#include "core/runtime/step/step_builder.h"

namespace kvasir {
namespace {

// Candidates of one sequence and layer, by kv head, that a plan names, or the others.
std::vector<std::vector<uint32_t>> planned_units(const std::vector<HeadSelection>& heads,
                                                 const Candidates& candidates, uint32_t n_heads,
                                                 bool named) {
  std::vector<std::vector<uint32_t>> out(n_heads);
  for (uint32_t head = 0; head < n_heads; ++head) {
    const HeadSelection& said = heads.size() == 1 ? heads[0] : heads[head];
    if (said.all) {
      if (named) out[head] = candidates.units_of(head);
      continue;
    }
    if (named) {
      out[head] = said.index;
      continue;
    }
    const std::vector<uint32_t> all = candidates.units_of(head);
    std::set_difference(all.begin(), all.end(), said.index.begin(), said.index.end(),
                        std::back_inserter(out[head]));
  }
  return out;
}

}  // namespace

std::vector<const Candidates*> EvictStage::Due::pointers() const {
  std::vector<const Candidates*> out;
  out.reserve(candidates.size());
  for (const Candidates& of_piece : candidates) out.push_back(&of_piece);
  return out;
}

void EvictStage::evict(const std::vector<Piece>& pieces, uint32_t plan_at) {
  for (const auto& selector : c_.pipeline.selectors) {
    if (!(selector->limits().plan_at & plan_at) || !selector->has_evict_plan()) continue;
    for (uint32_t layer = 0; layer < c_.geometry.n_layers; ++layer) {
      if (c_.dense_layer[layer]) continue;
      const Due now = due(*selector, layer, pieces, plan_at);
      const bool any = std::any_of(now.candidates.begin(), now.candidates.end(),
                                   [](const Candidates& c) { return c.max_count() > 0; });
      if (any)
        guard_selector(c_, *selector, "evict_plan", now.pass, "keeping everything",
                       [&] { return plan(*selector, now); });
    }
  }
}

EvictStage::Due EvictStage::due(const Selector& selector, uint32_t layer,
                                const std::vector<Piece>& pieces, uint32_t plan_at) const {
  const SelectorLimits& limits = selector.limits();
  Due out{{layer, {}}, {}};
  for (const Piece& piece : pieces) {
    if (piece.kv_len < limits.dense_below_tokens) continue;
    if (plan_at == KVASIR_PLAN_AT_STEP_END && limits.plan_every_tokens &&
        piece.seq->decode_index % limits.plan_every_tokens != 0)
      continue;
    out.pass.pieces.push_back(piece);
    const ForcedRange forced =
        forced_range(c_.cache, c_.forced_unit(), piece.kv_len, piece.seq->prompt_end);
    out.candidates.push_back(live_candidates(piece.seq->layers[layer], limits.unit, forced,
                                             c_.geometry.block_size, c_.geometry.n_kv_heads));
    if (limits.scope == KVASIR_SCOPE_SEQUENCE) share_candidates(out.candidates.back());
  }
  return out;
}

std::string EvictStage::plan(Selector& selector, const Due& due) {
  const SelectorLimits& limits = selector.limits();
  const std::vector<Piece>& pieces = due.pass.pieces;
  const uint32_t n_heads = c_.geometry.n_kv_heads;
  uint64_t capacity = 0;
  for (const Candidates& of_piece : due.candidates) capacity += of_piece.max_count() * n_heads;
  StepBuilder step(c_, KVASIR_MOMENT_STEP_END, due.pass, limits.unit, c_.owner_of(&selector),
                   due.pointers(), limits.scope);
  step.without_queries();
  lists_.prepare(limits.unit, std::min<uint32_t>(limits.scope, KVASIR_SCOPE_KV_HEAD),
                 limits.action ? limits.action : KVASIR_ACTION_EVICT,
                 static_cast<uint32_t>(pieces.size()) * n_heads, capacity, c_.group_size(), false);
  const kvasir_status status = selector.evict_plan(step.step(), lists_.view);
  lists_.reclaim();
  if (status == KVASIR_FALLBACK) return "";  // no plan
  if (status != KVASIR_OK) return fault_of(status);
  if (lists_.view.unit != limits.unit) return "changed the unit of its lists";
  if (lists_.view.action != KVASIR_ACTION_RESTRICT && lists_.view.action != KVASIR_ACTION_EVICT)
    return "unknown action " + std::to_string(lists_.view.action);
  CheckContext check;
  check.n_seqs = static_cast<uint32_t>(pieces.size());
  check.n_q_heads = c_.geometry.n_q_heads;
  check.n_kv_heads = n_heads;
  check.finest_scope = KVASIR_SCOPE_KV_HEAD;
  const std::string fault = check_selection(lists_.view, check, due.pointers());
  if (fault.empty()) apply(due, lists_.view);
  return fault;
}

void EvictStage::apply(const Due& due, const kvasir_selection& plan) {
  std::vector<Piece> packed;  // a storage's failure is not the selector's
  const std::vector<BlockStore::Packing> packings = evict_planned(due, plan, packed);
  together_or_alone(packed, packings, [&](auto some) { c_.store.pack(some); });
}

std::vector<BlockStore::Packing> EvictStage::evict_planned(const Due& due,
                                                           const kvasir_selection& plan,
                                                           std::vector<Piece>& packed) {
  const BlockStore::LetGoTogether together(c_.store);
  std::vector<BlockStore::Packing> packings;
  for (size_t i = 0; i < due.pass.pieces.size(); ++i) {
    const Piece& piece = due.pass.pieces[i];
    LayerState& state = piece.seq->layers[due.pass.layer];
    uint32_t width = 0;
    bool fallback = false;
    const auto heads = heads_of(plan, static_cast<uint32_t>(i), c_.geometry.n_q_heads,
                                c_.geometry.n_kv_heads, due.candidates[i], &width, &fallback);
    if (fallback || !evict(state, plan, heads, due.candidates[i])) continue;
    auto packing = packing_of(c_, *piece.seq, state, due.pass.layer, piece.kv_len);
    if (!packing) continue;
    packings.push_back(std::move(*packing));
    packed.push_back(piece);
  }
  return packings;
}

bool EvictStage::evict(LayerState& state, const kvasir_selection& plan,
                       const std::vector<HeadSelection>& heads, const Candidates& candidates) {
  const auto units = [&](bool lost) {  // the plan names one or the other
    const bool names_lost = (plan.flags & KVASIR_SELECTION_DROP) != 0;
    return planned_units(heads, candidates, c_.geometry.n_kv_heads, lost == names_lost);
  };
  const auto lost = units(true);
  if (std::all_of(lost.begin(), lost.end(), [](const auto& head) { return head.empty(); }))
    return false;
  state.selection.valid = false;
  if (plan.action == KVASIR_ACTION_EVICT) {
    evict_units(state, plan.unit, candidates.end, lost);
    return true;
  }
  state.restricted = units(false);
  state.restricted_unit = plan.unit;
  state.restricted_end = candidates.end;
  return false;
}

void EvictStage::evict_units(LayerState& state, uint32_t unit, uint32_t end,
                             const std::vector<std::vector<uint32_t>>& lost) {
  const uint32_t b = c_.geometry.block_size;
  const uint32_t per = unit == KVASIR_UNIT_BLOCK ? b : 1;
  state.dead.resize(lost.size());
  state.live.resize(lost.size());
  std::set<uint32_t> touched;  // blocks
  for (size_t head = 0; head < lost.size(); ++head) {
    auto& dead = state.dead[head];
    auto& live = state.live[head];
    for (auto t = static_cast<uint32_t>(dead.size()); t < end * per; ++t) live.push_back(t);
    dead.resize(std::max<size_t>(dead.size(), size_t{end} * per));
    for (const uint32_t u : lost[head]) {
      touched.insert(u * per / b);
      for (uint32_t t = 0; t < per; ++t) dead[size_t{u} * per + t] = true;
    }
    std::erase_if(live, [&](uint32_t t) { return dead[t]; });
    if (live.capacity() / 2 > live.size()) live.shrink_to_fit();  // of a prompt, few are left
  }
  free_dead_blocks(c_, state, touched);
}

}  // namespace kvasir
