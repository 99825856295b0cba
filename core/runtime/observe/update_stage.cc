// Updates; see update_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/update_stage.h"

#include <algorithm>

#include "core/runtime/observe/update_call.h"
#include "core/runtime/select/index_lists.h"
#include "core/runtime/step/guarded_call.h"

namespace kvasir {

uint32_t UpdateStage::window_begin(const Piece& piece, uint32_t n) const {
  return forced_range(c_.cache, KVASIR_UNIT_BLOCK, n, piece.seq->prompt_end).window_begin /
         c_.geometry.block_size;
}

void UpdateStage::appended(const Pass& pass) {
  if (c_.dense_layer[pass.layer]) return;
  const uint32_t b = c_.geometry.block_size;
  for (const SlabOwner& owner : c_.owners) {
    const bool sealed_only = owner.layout.flags & KVASIR_LAYOUT_SEALED_ONLY;
    std::vector<kvasir_update_item> items;
    for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
      LayerState& state = pass.pieces[i].seq->layers[pass.layer];
      const uint32_t begin = pass.pieces[i].first_pos(), end = pass.pieces[i].kv_len;
      if (begin == end) continue;
      if (!sealed_only || end / b > begin / b)
        owner.slab.make_writable(pages_of(owner, state), begin / b, (end + b - 1) / b);
      for (uint32_t block = begin / b; block * b < end; ++block) {
        const uint32_t n_tokens = std::min(b, end - block * b);
        if (sealed_only && n_tokens < b) continue;
        const uint32_t first = sealed_only || block > begin / b ? 0 : begin % b;
        const uint32_t flags = KVASIR_ITEM_NEW | (n_tokens == b ? KVASIR_ITEM_SEALED : 0u);
        items.push_back(
            {i, block, first, n_tokens - first, n_tokens, flags, &state.leases[block], nullptr});
      }
    }
    send_update(c_, owner, pass, KVASIR_MOMENT_APPENDED, std::move(items));
  }
}

void UpdateStage::left_window(const Pass& pass) {
  if (c_.dense_layer[pass.layer] || pass.pieces.empty()) return;
  std::vector<uint32_t> ends;  // as the next query finds it: what it may choose is FINAL by then
  ends.reserve(pass.pieces.size());
  for (const Piece& piece : pass.pieces) ends.push_back(window_begin(piece, piece.kv_len + 1));
  for (const SlabOwner& owner : c_.owners)
    if (owner.layout.flags & KVASIR_LAYOUT_WANT_FINAL || owner.layout.open_bytes)
      left_window(owner, pass, ends);
  for (size_t i = 0; i < pass.pieces.size(); ++i) {
    uint32_t& final_blocks = pass.pieces[i].seq->layers[pass.layer].final_blocks;
    final_blocks = std::max(final_blocks, ends[i]);
  }
  refresh(pass);
}

void UpdateStage::left_window(const SlabOwner& owner, const Pass& pass,
                              const std::vector<uint32_t>& ends) {
  const uint32_t b = c_.geometry.block_size;
  std::vector<kvasir_update_item> items;
  std::vector<std::vector<uint32_t>> blocks(pass.pieces.size());
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const Piece& piece = pass.pieces[i];
    const LayerState& state = piece.seq->layers[pass.layer];
    // A block that a cut brought back leaves again. Its open bytes are gone: what was made of them
    // stands.
    const uint32_t begin =
        owner.layout.open_bytes
            ? state.final_blocks
            : std::min(state.final_blocks, window_begin(piece, piece.first_pos() + 1));
    for (uint32_t block = begin; block < ends[i]; ++block) blocks[i].push_back(block);
  }
  lease_blocks(c_, pass, blocks);
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const Piece& piece = pass.pieces[i];
    LayerState& state = piece.seq->layers[pass.layer];
    if (piece.has_failed()) continue;
    for (const uint32_t block : blocks[i])
      if (state.blocks[block])
        items.push_back({i, block, b, 0, b, KVASIR_ITEM_FINAL, &state.leases[block], nullptr});
    if (!blocks[i].empty())
      owner.slab.make_writable(pages_of(owner, state), blocks[i].front(), ends[i]);
  }
  send_update(c_, owner, pass, KVASIR_MOMENT_ATTENDED, std::move(items));
  for (size_t i = 0; i < pass.pieces.size(); ++i)
    owner.slab.free_open(pages_of(owner, pass.pieces[i].seq->layers[pass.layer]), ends[i]);
}

void UpdateStage::prompt_end(const Pass& pass) {
  if (c_.dense_layer[pass.layer]) return;
  const Pass ended = pass.only([](const Piece& p) { return p.flags & KVASIR_STEP_LAST_PIECE; });
  if (ended.pieces.empty()) return;
  for (const SlabOwner& owner : c_.owners)
    if (owner.wants_prompt_end()) send_candidates(owner, ended, KVASIR_MOMENT_PROMPT_END);
}

void UpdateStage::refresh(const Pass& pass) {
  for (const SlabOwner& owner : c_.owners) {
    const uint32_t every = owner.layout.refresh_tokens;
    if (every == 0 || !owner.wants_prompt_end()) continue;
    const Pass due = pass.only([&](const Piece& piece) {  // decode_index: tokens before this one
      return piece.decodes() && (piece.seq->decode_index + 1) % every == 0;
    });
    if (!due.pieces.empty()) send_candidates(owner, due, KVASIR_MOMENT_ATTENDED);
  }
}

void UpdateStage::send_candidates(const SlabOwner& owner, const Pass& pass, uint32_t moment) {
  const uint32_t b = c_.geometry.block_size;
  const bool all = owner.layout.flags & KVASIR_LAYOUT_PROMPT_END_ALL;
  lease_all(c_, pass);
  std::vector<kvasir_update_item> items;
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const Piece& piece = pass.pieces[i];
    LayerState& state = piece.seq->layers[pass.layer];
    if (piece.has_failed()) continue;
    const ForcedRange forced =
        forced_range(c_.cache, c_.forced_unit(), piece.kv_len, piece.seq->prompt_end);
    const uint32_t begin = forced.sink_end / b;
    const uint32_t end = ((all ? piece.kv_len : forced.window_begin) + b - 1) / b;
    owner.slab.make_writable(pages_of(owner, state), begin, end);
    for (uint32_t block = begin; block < end; ++block)
      if (state.blocks[block])
        items.push_back({i, block, 0, 0, state.leases[block].n_tokens, KVASIR_ITEM_PROMPT_END,
                         &state.leases[block], nullptr});
  }
  send_update(c_, owner, pass, moment, std::move(items));
}

void UpdateStage::refeed(const SlabOwner& owner, Sequence& seq, uint32_t from_block) {
  const uint32_t b = c_.geometry.block_size;
  Piece piece;
  piece.seq = &seq;
  piece.kv_len = seq.kv_len;
  for (uint32_t layer = 0; layer < c_.geometry.n_layers; ++layer) {
    if (c_.dense_layer[layer]) continue;
    LayerState& state = seq.layers[layer];
    c_.store.make_all_resident(state);
    const auto n_blocks = static_cast<uint32_t>(state.blocks.size());
    owner.slab.make_writable(pages_of(owner, state), from_block, n_blocks);
    std::vector<kvasir_update_item> items;
    for (uint32_t block = from_block; block < n_blocks; ++block) {
      const uint32_t n_tokens = state.leases[block].n_tokens;
      if (!state.blocks[block] || (n_tokens < b && owner.layout.flags & KVASIR_LAYOUT_SEALED_ONLY))
        continue;
      items.push_back({0, block, 0, n_tokens, n_tokens,
                       KVASIR_ITEM_NEW | (n_tokens == b ? KVASIR_ITEM_SEALED : 0u),
                       &state.leases[block], nullptr});
    }
    send_update(c_, owner, {layer, {piece}}, KVASIR_MOMENT_BETWEEN_STEPS, std::move(items));
    c_.store.release_step(state);
  }
}

}  // namespace kvasir
