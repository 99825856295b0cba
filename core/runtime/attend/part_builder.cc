// Parts of one piece; see part_builder.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/part_builder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/sequence/sliding_window.h"

namespace kvasir {

PartBuilder::PartBuilder(const RunContext& context, const Pass& pass, const Piece& piece,
                         Rotation& rotation)
    : c_(context),
      in_(pass.in),
      piece_(piece),
      state_(piece.seq->layers[pass.layer]),
      window_(context.sliding_window(pass.layer)),
      rotation_(rotation) {
  parts_.reserve(2);  // references to one stay good while the other is made
}

void PartBuilder::build(const LayerSelection& selection) {
  if (window_ != 0) return build_sliding();
  const bool holes = !state_.dead.empty();
  const bool in_blocks = !holes && selection.unit == KVASIR_UNIT_BLOCK;
  if (selection.dense && !holes) return build_dense();
  if (in_.q_constant && !selection.dense && in_blocks) return build_near_and_far(selection);
  build_chosen(selection);
}

void PartBuilder::build_dense() {
  const uint32_t b = c_.geometry.block_size;
  const uint32_t n_blocks = (piece_.kv_len + b - 1) / b;
  Part& part = new_part(KVASIR_UNIT_BLOCK, in_.q);
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) add_range(part, head, 0, n_blocks);
}

void PartBuilder::build_sliding() {
  const uint32_t b = c_.geometry.block_size;
  Part& part = new_part(KVASIR_UNIT_BLOCK, in_.q);
  part.abi.dist_max = window_;
  part.null_items = false;
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
    const uint64_t begin = part.items.size();
    for (uint32_t block = first_seen(piece_.first_pos(), window_) / b; block * b < piece_.kv_len;
         ++block)
      part.items.push_back(block);
    add_range(part, head, begin, part.items.size());
  }
}

// Selected keys at a constant position: two parts, divided at the window's distance, whose softmax
// is joint (arXiv:2402.04617).
void PartBuilder::build_near_and_far(const LayerSelection& selection) {
  const uint32_t window = std::max(1u, c_.cache.window_tokens.value);
  Part& near = new_part(KVASIR_UNIT_BLOCK, in_.q);
  near.abi.dist_max = window;
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head)
    add_block_range(near, head, selection, false);
  Part& far = new_part(KVASIR_UNIT_BLOCK, in_.q_constant, true);
  far.abi.dist_min = window;
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head)
    add_block_range(far, head, selection, true);
}

void PartBuilder::build_chosen(const LayerSelection& selection) {
  const bool in_tokens =
      !state_.dead.empty() || selection.width > 0 || selection.unit == KVASIR_UNIT_TOKEN;
  Part& part = new_part(in_tokens ? KVASIR_UNIT_TOKEN : KVASIR_UNIT_BLOCK, in_.q);
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
    if (in_tokens)
      add_token_range(part, head, selection);
    else
      add_block_range(part, head, selection, true);
  }
  part.abi.weight_width = selection.dense ? 0 : selection.width;
}

Part& PartBuilder::new_part(uint32_t unit, const ModelRows& q, bool is_far) {
  Part& made = parts_.emplace_back();
  made.place = piece_.place;
  made.rotates_keys = !is_far && c_.geometry.k_state == KVASIR_K_UNROTATED;
  kvasir_attn_part& abi = made.abi;
  abi.struct_size = sizeof(abi);
  abi.unit = unit;
  abi.range_size = sizeof(kvasir_attn_range);
  abi.lease_size = sizeof(kvasir_lease);
  abi.leases = state_.leases.data();
  abi.n_leases = static_cast<uint32_t>(state_.leases.size());
  abi.dist_max = UINT32_MAX;
  abi.q = q.view_for(*c_.pipeline.attention, c_.store.bridge(),
                     {in_.n, c_.geometry.n_q_heads, c_.geometry.head_dim});
  abi.q_pos = host_view(in_.pos, KVASIR_DTYPE_U32, {in_.n});
  return made;
}

void PartBuilder::add_range(Part& part, uint32_t head, uint64_t begin, uint64_t end) {
  const uint32_t flags = piece_.prefills() ? KVASIR_ATTN_RANGE_PREFILL : 0u;
  part.ranges.push_back({head, piece_.q_begin, piece_.n_q, flags, begin, end});
}

// The window always; the sink and what was selected where asked for.
void PartBuilder::add_block_range(Part& part, uint32_t head, const LayerSelection& selection,
                                  bool sink_and_selected) {
  const uint32_t b = c_.geometry.block_size;
  const uint64_t begin = part.items.size();
  part.null_items = false;
  if (sink_and_selected) {
    for (uint32_t block = 0; block < selection.sink_end / b; ++block) part.items.push_back(block);
    const auto& chosen = selection.head(head).index;
    if (!selection.there.empty()) {
      part.there.push_back({head, part.items.size(), chosen.size(), selection.there[head]});
      part.owner = {piece_.seq->id, state_.told, 0};
    }
    part.items.insert(part.items.end(), chosen.begin(), chosen.end());
  }
  for (uint32_t block = selection.window_begin / b; block * b < piece_.kv_len; ++block)
    part.items.push_back(block);
  add_range(part, head, begin, part.items.size());
}

void PartBuilder::add_token_range(Part& part, uint32_t head, const LayerSelection& selection) {
  const uint64_t begin = part.items.size();
  part.null_items = false;
  const uint32_t b = c_.geometry.block_size, width = selection.width;
  ItemWalk walk(state_, b, head);
  const auto push = [&](uint32_t token, const float* weight) {  // tokens ascend
    if (is_dead(state_, head, token)) return;
    part.items.push_back(walk.item(token));
    for (uint32_t w = 0; w < width; ++w) part.weights.push_back(weight ? weight[w] : 0.0f);
  };
  if (selection.dense) {
    for (uint32_t token = 0; token < piece_.kv_len; ++token) push(token, nullptr);
  } else {
    for (uint32_t token = 0; token < selection.sink_end; ++token) push(token, nullptr);
    const HeadSelection& chosen = selection.head(head);
    const uint32_t per = selection.unit == KVASIR_UNIT_BLOCK ? b : 1;
    for (size_t i = 0; i < chosen.index.size(); ++i)
      for (uint32_t t = 0; t < per; ++t)
        push(chosen.index[i] * per + t, width ? chosen.weight.data() + i * width : nullptr);
    for (uint32_t token = selection.window_begin; token < piece_.kv_len; ++token)
      push(token, nullptr);
  }
  add_range(part, head, begin, part.items.size());
}

void PartBuilder::add_needs(LayerNeeds& needs) const {
  for (const Part& part : parts_) needs.add(state_, part);
}

void PartBuilder::finish(std::deque<Part>& parts) {
  for (Part& part : parts_) finish(part);
  for (Part& part : parts_) {
    if (c_.store.has_window())
      split(part, parts);
    else
      parts.emplace_back(std::move(part)).point_to_own();
  }
}

void PartBuilder::finish(Part& part) {
  const uint64_t rope_len = std::max(piece_.seq->prompt_end, piece_.kv_len);
  if (part.rotates_keys || state_.packed.end)
    part.leases = leases_by_item(state_, c_.geometry.block_size);
  // Where every token is attended to, slots are positions anyway.
  if (c_.cache.positions.value == Positions::kSlot && !part.null_items && window_ == 0)
    rotation_.to_slots(part, piece_, state_, rope_len);
  else if (part.rotates_keys)
    rotation_.to_positions(part, rope_len);
}

void PartBuilder::split(const Part& whole, std::deque<Part>& parts) const {
  const std::vector<kvasir_lease> leases = leases_by_item(state_, c_.geometry.block_size);
  for (const bool in_window : {false, true}) {
    Part part = narrowed(whole, leases, in_window);
    if (!part.ranges.empty()) parts.emplace_back(std::move(part)).point_to_own();
  }
}

// The items of a part that lie in one of the two storages, and no range without any. `leases`: in
// the order of the part's items, of both.
Part PartBuilder::narrowed(const Part& whole, const std::vector<kvasir_lease>& leases,
                           bool in_window) const {
  Part made;
  made.abi = whole.abi;
  made.place = whole.place;
  made.in_window = in_window;
  made.by_window = in_window || (c_.prompts_by_window && piece_.prefills());
  made.null_items = false;
  std::vector<uint32_t> ordinal(leases.size(), UINT32_MAX);  // among those that stay
  for (size_t i = 0; i < leases.size(); ++i) {
    if (c_.store.in_window(leases[i]) != in_window) continue;
    ordinal[i] = static_cast<uint32_t>(made.leases.size());
    made.leases.push_back(leases[i]);
    if (in_window && !c_.prompts_by_window)
      made.leases.back().format = c_.store.window_format(leases[i]);
  }
  const uint32_t per = whole.in_blocks() ? 1 : c_.geometry.block_size;
  const uint32_t width = whole.abi.weight_width;
  for (kvasir_attn_range range : whole.ranges) {
    const uint64_t begin = made.items.size();
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = whole.item(i);
      if (ordinal[item / per] == UINT32_MAX) continue;
      made.items.push_back(ordinal[item / per] * per + item % per);
      made.weights.insert(made.weights.end(),
                          whole.weights.begin() + static_cast<ptrdiff_t>(i * width),
                          whole.weights.begin() + static_cast<ptrdiff_t>((i + 1) * width));
    }
    range.item_begin = begin;
    range.item_end = made.items.size();
    if (range.item_begin < range.item_end) made.ranges.push_back(range);
  }
  return made;
}

}  // namespace kvasir
