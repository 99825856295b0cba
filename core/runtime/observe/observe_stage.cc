// Observation; see observe_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/observe_stage.h"

#include <algorithm>

#include "core/runtime/observe/block_heat.h"
#include "core/runtime/observe/mass_lists.h"
#include "core/runtime/observe/update_call.h"
#include "core/runtime/step/guarded_call.h"
#include "core/runtime/step/step_builder.h"

namespace kvasir {
namespace {

// First position whose query counts when the last `wanted` queries of the prompt do.
uint32_t first_counted(const Sequence& seq, uint32_t wanted) {
  return wanted >= seq.prompt_end ? 0 : seq.prompt_end - wanted;
}

// Mass of one sequence by block: [n_q_heads][tokens of the block] each, empty where there is none.
std::vector<std::vector<float>> by_block(const std::vector<HeadMass>& heads,
                                         const LayerState& state, uint32_t group_size,
                                         uint32_t block_size) {
  std::vector<std::vector<float>> blocks(state.blocks.size());
  const size_t q_heads = heads.size() * group_size;
  for (size_t head = 0; head < heads.size(); ++head)
    for (size_t i = 0; i < heads[head].pos.size(); ++i) {
      const uint32_t block = heads[head].pos[i] / block_size, t = heads[head].pos[i] % block_size;
      const uint32_t n_tokens = state.leases[block].n_tokens;
      if (blocks[block].empty()) blocks[block].assign(q_heads * n_tokens, 0.0f);
      for (uint32_t g = 0; g < group_size; ++g)
        blocks[block][(head * group_size + g) * n_tokens + t] +=
            heads[head].value[i * group_size + g];
    }
  return blocks;
}

}  // namespace

void ObserveStage::prompt_queries(const Pass& pass) {
  if (c_.dense_layer[pass.layer]) return;
  for (const auto& selector : c_.pipeline.selectors) {
    const uint32_t wanted = selector->limits().prefill_last_queries;
    if (!selector->has_prefill() || wanted == 0) continue;
    Pass last = pass.with({});
    for (const Piece& piece : pass.pieces) {
      const uint32_t from = first_counted(*piece.seq, wanted);
      if (!piece.prefills() || from >= piece.kv_len) continue;
      Piece& part = last.pieces.emplace_back(piece);
      if (from <= piece.first_pos()) continue;
      part.q_begin += from - piece.first_pos();
      part.n_q = piece.kv_len - from;
    }
    if (last.pieces.empty()) continue;
    const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, last, selector->limits().unit,
                           c_.owner_of(selector.get()));
    kvasir_sel_in in{};
    in.struct_size = sizeof(in);
    in.q = c_.store.bridge().to_reader(
        *selector,
        pass.in.q.view_for(*selector, c_.store.bridge(),
                           {pass.in.n, c_.geometry.n_q_heads, c_.geometry.head_dim}),
        q_hold_);
    guard_selector(c_, *selector, "prefill", last, "going on without it",
                   [&] { return fault_of(selector->prefill(step.step(), in)); });
  }
}

uint32_t ObserveStage::n_asked(uint32_t layer, const Piece& piece) const {
  if (c_.dense_layer[layer]) return 0;
  uint32_t n = 0;
  const auto ask = [&](uint32_t mass_at, uint32_t last_queries) {
    const uint32_t from = std::max(first_counted(*piece.seq, last_queries), piece.first_pos());
    if (mass_at & KVASIR_MASS_AT_PREFILL && from < piece.kv_len)
      n = std::max(n, piece.kv_len - from);
  };
  for (const auto& selector : c_.pipeline.selectors)
    if (selector->has_observe())
      ask(selector->limits().mass_at, selector->limits().mass_last_queries);
  for (const SlabOwner& owner : c_.owners)
    if (owner.representative) ask(owner.layout.mass_at, owner.layout.mass_last_queries);
  return n;
}

ObserveStage::Watched ObserveStage::watched(const Pass& pass, uint32_t mass_at,
                                            uint32_t last_queries) {
  Watched out{pass.with({}), {}};
  for (const Piece& piece : pass.pieces) {
    if (piece.has_failed()) continue;
    const uint32_t at = piece.prefills() ? KVASIR_MASS_AT_PREFILL : KVASIR_MASS_AT_DECODE;
    const uint32_t from = piece.prefills() ? first_counted(*piece.seq, last_queries) : 0;
    if (!(mass_at & at) || from >= piece.kv_len) continue;
    out.pass.pieces.push_back(piece);
    out.from_pos.push_back(from);
  }
  return out;
}

void ObserveStage::observe(const Pass& pass, AttendStage& attention) {
  if (c_.dense_layer[pass.layer]) return;
  for (const auto& selector : c_.pipeline.selectors) {
    const SelectorLimits& limits = selector->limits();
    if (!selector->has_observe() || c_.faults.is_aside(c_.index_of(*selector))) continue;
    const Watched seen = watched(pass, limits.mass_at, limits.mass_last_queries);
    if (seen.pass.pieces.empty()) continue;
    observe_selector(
        *selector, seen,
        attention.mass(seen.pass, seen.from_pos, limits.mass_part == KVASIR_PART_WINDOW,
                       limits.mass_level != KVASIR_MASS_LISTS));
  }
  for (const SlabOwner& owner : c_.owners) {
    if (!owner.representative || c_.faults.representative_failed()) continue;
    const Watched seen = watched(pass, owner.layout.mass_at, owner.layout.mass_last_queries);
    if (seen.pass.pieces.empty()) continue;
    feed_mass(owner, seen.pass,
              attention.mass(seen.pass, seen.from_pos, owner.layout.mass_part == KVASIR_PART_WINDOW,
                             true));
  }
  tell_mass(c_, pass, attention);
}

void ObserveStage::observe_selector(Selector& selector, const Watched& watched,
                                    const std::vector<std::vector<HeadMass>>& mass) {
  const std::vector<Piece>& pieces = watched.pass.pieces;
  std::vector<uint32_t> n_queries;
  for (size_t i = 0; i < pieces.size(); ++i)
    n_queries.push_back(pieces[i].kv_len - std::max(watched.from_pos[i], pieces[i].first_pos()));
  const SelectorLimits& limits = selector.limits();
  const MassLists lists = mass_lists(mass, limits, c_.group_size(), c_.geometry.block_size);
  kvasir_mass out{};
  out.struct_size = sizeof(out);
  out.unit = lists.unit;
  out.reduce = limits.mass_reduce;
  out.n_queries = n_queries.data();
  out.n_lists = static_cast<uint32_t>(lists.offsets.size() - 1);
  out.list_offsets = lists.offsets.data();
  out.index = lists.index.data();
  if (limits.mass_level != KVASIR_MASS_LISTS)
    out.value = c_.store.bridge().to_reader(
        selector, host_view(lists.value.data(), KVASIR_DTYPE_F32, {lists.value.size()}),
        mass_hold_);
  const SlabOwner* owner = c_.owner_of(&selector);
  if (owner && (limits.flags & KVASIR_LIMIT_OBSERVE_WRITES_SLAB))
    for (const Piece& piece : pieces)
      owner->slab.make_writable(
          piece.seq->layers[watched.pass.layer].slabs[c_.owner_index(owner)], 0,
          (piece.kv_len + c_.geometry.block_size - 1) / c_.geometry.block_size);
  StepBuilder step(c_, KVASIR_MOMENT_ATTENDED, watched.pass, limits.unit, owner);
  step.without_queries();
  guard_selector(c_, selector, "observe", watched.pass, "going on without it",
                 [&] { return fault_of(selector.observe(step.step(), out)); });
}

void ObserveStage::feed_mass(const SlabOwner& owner, const Pass& pass,
                             const std::vector<std::vector<HeadMass>>& mass) {
  const uint32_t q_heads = c_.geometry.n_q_heads;
  std::vector<kvasir_update_item> items;
  std::vector<float> flat;      // mass of all items
  std::vector<uint64_t> where;  // of each in it
  std::vector<std::vector<std::vector<float>>> by_piece;
  std::vector<std::vector<uint32_t>> attended(pass.pieces.size());  // blocks
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const LayerState& state = pass.pieces[i].seq->layers[pass.layer];
    by_piece.push_back(by_block(mass[i], state, c_.group_size(), c_.geometry.block_size));
    for (uint32_t block = 0; block < by_piece[i].size(); ++block)
      if (!by_piece[i][block].empty()) attended[i].push_back(block);
  }
  lease_blocks(c_, pass, attended);
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    if (pass.pieces[i].has_failed()) continue;
    LayerState& state = pass.pieces[i].seq->layers[pass.layer];
    const auto& blocks = by_piece[i];
    for (const uint32_t block : attended[i]) {
      owner.slab.make_writable(state.slabs[c_.owner_index(&owner)], block, block + 1);
      const uint32_t n_tokens = state.leases[block].n_tokens;
      items.push_back(
          {i, block, n_tokens, 0, n_tokens, KVASIR_ITEM_MASS, &state.leases[block], nullptr});
      where.push_back(flat.size());
      flat.insert(flat.end(), blocks[block].begin(), blocks[block].end());
    }
  }
  const kvasir_view all = c_.store.bridge().to_reader(
      owner.plugin(), host_view(flat.data(), KVASIR_DTYPE_F32, {flat.size()}), mass_hold_);
  std::vector<kvasir_view> views;
  for (size_t i = 0; i < items.size(); ++i) {
    kvasir_view view = host_view(static_cast<float*>(all.data) + where[i], KVASIR_DTYPE_F32,
                                 {q_heads, items[i].n_tokens});
    view.mem_kind = all.mem_kind;
    view.device = all.device;
    views.push_back(view);
  }
  for (size_t i = 0; i < items.size(); ++i) items[i].mass = &views[i];
  send_update(c_, owner, pass, KVASIR_MOMENT_ATTENDED, std::move(items));
}

}  // namespace kvasir
