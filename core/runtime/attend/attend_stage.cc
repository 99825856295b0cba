// Attention over selections; see attend_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/attend_stage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/runtime/blocks/element_type.h"
#include "kernels/attention_state.h"
#include "kernels/convert.h"

namespace kvasir {
namespace {

bool is_dead(const LayerState& state, uint32_t head, uint32_t token) {
  return !state.dead.empty() && token < state.dead[head].size() && state.dead[head][token];
}

// Items of a part count through the packed blocks of kv head 0, 1, … and then the others.
uint32_t first_item(const LayerState& state, uint32_t block_size, uint32_t head) {
  size_t blocks = 0;
  for (uint32_t h = 0; h < head && h < state.packed.heads.size(); ++h)
    blocks += state.packed.heads[h].blocks.size();
  return static_cast<uint32_t>(blocks) * block_size;
}

uint32_t attn_flags(const Piece& piece) {
  return piece.prefills() ? KVASIR_ATTN_RANGE_PREFILL : 0u;
}

// One row per sequence, as plugins see them.
std::vector<Piece> whole_pieces(const std::vector<Piece>& pieces) {
  std::vector<Piece> whole;
  for (const Piece& piece : pieces) {
    if (whole.empty() || whole.back().seq != piece.seq ||
        whole.back().q_begin + whole.back().n_q != piece.q_begin) {
      whole.push_back(piece);
      continue;
    }
    whole.back().n_q += piece.n_q;
    whole.back().kv_len = piece.kv_len;
  }
  return whole;
}

uint32_t position_of(const Piece& piece, uint32_t query) {
  return piece.first_pos() + query - piece.q_begin;
}

// Where a living token stands.
uint32_t item_of(const LayerState& state, uint32_t block_size, uint32_t head, uint32_t token) {
  if (token >= state.packed.end)
    return token - state.packed.end + first_item(state, block_size, UINT32_MAX);
  const auto& live = *state.packed.heads[head].live;
  return first_item(state, block_size, head) +
         static_cast<uint32_t>(std::lower_bound(live.begin(), live.end(), token) - live.begin());
}

}  // namespace

uint32_t AttendStage::first_key(const Part& part, const kvasir_attn_range& range) const {
  if (range.item_begin == range.item_end) return UINT32_MAX;
  const uint32_t item =
      part.null_items ? static_cast<uint32_t>(range.item_begin) : part.items[range.item_begin];
  const uint32_t b = c_.geometry.block_size;
  if (part.part.unit == KVASIR_UNIT_BLOCK) return part.part.leases[item].pos_begin;
  const kvasir_lease& lease = part.part.leases[item / b];
  return lease.token_pos ? lease.token_pos[item % b] : lease.pos_begin + item % b;
}

AttendStage::AttendStage(RunContext& context) : c_(context) {
  Side& all = sides_.emplace_back();
  all.backend = c_.pipeline.attention.get();
  all.bridge = &c_.store.bridge();
  if (!c_.pipeline.is_hybrid()) return;
  Side& window = sides_.emplace_back();
  window.backend = c_.pipeline.window_attention.get();
  window.bridge = c_.window_bridge;
  window.in_window = true;
}

AttendStage::Part& AttendStage::new_part(uint32_t place, const LayerState& state, uint32_t unit,
                                         const float* q, const Queries& queries) {
  Part& made = parts_.emplace_back();
  made.place = place;
  kvasir_attn_part& part = made.part;
  part.struct_size = sizeof(part);
  part.unit = unit;
  part.range_size = sizeof(kvasir_attn_range);
  part.lease_size = sizeof(kvasir_lease);
  part.leases = state.leases.data();
  part.n_leases = static_cast<uint32_t>(state.leases.size());
  part.dist_max = UINT32_MAX;
  part.q = view_f32(q, queries.n, c_.geometry.n_q_heads, c_.geometry.head_dim);
  part.q_pos = host_view(queries.pos, KVASIR_DTYPE_U32, {queries.n});
  return made;
}

void AttendStage::add_dense_range(Part& part, const Piece& piece, uint32_t head,
                                  uint32_t n_blocks) {
  part.ranges.push_back({head, piece.q_begin, piece.n_q, attn_flags(piece), 0, n_blocks});
}

void AttendStage::add_block_range(Part& part, const Piece& piece, uint32_t head,
                                  const LayerSelection& selection, bool sink_and_selected,
                                  bool window) {
  const uint32_t b = c_.geometry.block_size;
  const uint64_t begin = part.items.size();
  part.null_items = false;
  if (sink_and_selected) {
    for (uint32_t block = 0; block < selection.sink_end / b; ++block) part.items.push_back(block);
    const auto& chosen = selection.head(head).index;
    part.items.insert(part.items.end(), chosen.begin(), chosen.end());
  }
  if (window)
    for (uint32_t block = selection.window_begin / b; block * b < piece.kv_len; ++block)
      part.items.push_back(block);
  part.ranges.push_back(
      {head, piece.q_begin, piece.n_q, attn_flags(piece), begin, part.items.size()});
}

void AttendStage::add_token_range(Part& part, const Piece& piece, uint32_t head,
                                  const LayerState& state, const LayerSelection& selection) {
  const uint64_t begin = part.items.size();
  part.null_items = false;
  const uint32_t width = selection.width;
  const auto push = [&](uint32_t token, const float* weight) {
    if (is_dead(state, head, token)) return;
    part.items.push_back(item_of(state, c_.geometry.block_size, head, token));
    for (uint32_t w = 0; w < width; ++w) part.weights.push_back(weight ? weight[w] : 0.0f);
  };
  if (selection.dense) {
    for (uint32_t token = 0; token < piece.kv_len; ++token) push(token, nullptr);
  } else {
    for (uint32_t token = 0; token < selection.sink_end; ++token) push(token, nullptr);
    const HeadSelection& chosen = selection.head(head);
    const uint32_t per = selection.unit == KVASIR_UNIT_BLOCK ? c_.geometry.block_size : 1;
    for (size_t i = 0; i < chosen.index.size(); ++i)
      for (uint32_t t = 0; t < per; ++t)
        push(chosen.index[i] * per + t, width ? chosen.weight.data() + i * width : nullptr);
    for (uint32_t token = selection.window_begin; token < piece.kv_len; ++token)
      push(token, nullptr);
  }
  part.ranges.push_back(
      {head, piece.q_begin, piece.n_q, attn_flags(piece), begin, part.items.size()});
}

// Parts of one sequence: one in the plain case; with constant-position candidates two, split at the
// window's distance, whose softmax is joint (arXiv:2402.04617).
void AttendStage::add_parts(uint32_t layer, uint32_t place, const Piece& piece,
                            const LayerSelection& selection, const Queries& queries,
                            bool constant) {
  LayerState& state = piece.seq->layers[layer];
  const uint32_t heads = c_.geometry.n_kv_heads, b = c_.geometry.block_size;
  const bool unrotated = c_.geometry.k_state == KVASIR_K_UNROTATED;
  const bool holes = !state.dead.empty();
  if (selection.dense && !holes) {
    const uint32_t n_blocks = (piece.kv_len + b - 1) / b;
    Part& part = new_part(place, state, KVASIR_UNIT_BLOCK, queries.rotated, queries);
    for (uint32_t head = 0; head < heads; ++head) add_dense_range(part, piece, head, n_blocks);
    return close_part(part, piece, state, unrotated);
  }
  if (constant && !selection.dense && selection.unit == KVASIR_UNIT_BLOCK && !holes) {
    const uint32_t window = std::max(1u, c_.cache.window_tokens.value);
    Part& near = new_part(place, state, KVASIR_UNIT_BLOCK, queries.rotated, queries);
    near.part.dist_max = window;
    for (uint32_t head = 0; head < heads; ++head)
      add_block_range(near, piece, head, selection, false, true);
    close_part(near, piece, state, unrotated);
    Part& far = new_part(place, state, KVASIR_UNIT_BLOCK, queries.constant, queries);
    far.part.dist_min = window;
    for (uint32_t head = 0; head < heads; ++head)
      add_block_range(far, piece, head, selection, true, true);
    return close_part(far, piece, state, false);
  }
  const bool tokens = holes || selection.width > 0 || selection.unit == KVASIR_UNIT_TOKEN;
  Part& part = new_part(place, state, tokens ? KVASIR_UNIT_TOKEN : KVASIR_UNIT_BLOCK,
                        queries.rotated, queries);
  for (uint32_t head = 0; head < heads; ++head) {
    if (tokens)
      add_token_range(part, piece, head, state, selection);
    else
      add_block_range(part, piece, head, selection, true, true);
  }
  part.part.weight_width = selection.dense ? 0 : selection.width;
  close_part(part, piece, state, unrotated);
}

void AttendStage::make_resident(const Part& part, LayerState& state) {
  if (!c_.store.moves()) return;
  if (part.null_items) return c_.store.make_all_resident(state);
  const uint32_t b = c_.geometry.block_size;
  const uint32_t first_whole = first_item(state, b, UINT32_MAX);  // of blocks of all heads
  NeededTokens needed(b, c_.geometry.n_kv_heads, state.blocks.size());
  std::vector<NeededTokens> packed;
  for (const PackedHead& head : state.packed.heads) packed.emplace_back(b, 1, head.blocks.size());
  for (const kvasir_attn_range& range : part.ranges) {
    const uint32_t first = first_item(state, b, range.kv_head);
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = part.items[i];
      if (part.part.unit == KVASIR_UNIT_BLOCK)  // nothing is packed
        needed.add_block(range.kv_head, item);
      else if (item < first_whole)
        packed[range.kv_head].add_token(0, item - first);
      else
        needed.add_token(range.kv_head, item - first_whole + state.packed.end);
    }
  }
  c_.store.make_resident(state, needed.take());
  for (size_t head = 0; head < packed.size(); ++head)
    c_.store.make_resident(state.packed.heads[head], packed[head].take());
}

// The leases of a part in the order of its items.
std::vector<kvasir_lease> AttendStage::leases_of(const LayerState& state) const {
  const uint32_t b = c_.geometry.block_size;
  std::vector<kvasir_lease> leases;
  for (const PackedHead& head : state.packed.heads)
    for (size_t block = 0; block < head.leases.size(); ++block) {
      leases.push_back(head.leases[block]);
      leases.back().token_pos = head.live->data() + block * b;
    }
  leases.insert(leases.end(), state.leases.begin() + state.packed.end / b, state.leases.end());
  return leases;
}

void AttendStage::close_part(Part& part, const Piece& piece, LayerState& state, bool rotate) {
  const uint64_t rope_len = std::max(piece.seq->prompt_end, piece.kv_len);
  make_resident(part, state);
  if (rotate || state.packed.end) {
    part.leases = leases_of(state);
    part.part.leases = part.leases.data();
    part.part.n_leases = static_cast<uint32_t>(part.leases.size());
  }
  // Whole rows of whole sequences stand at their positions anyway.
  const bool by_slot = c_.cache.positions.value == Positions::kSlot && !part.null_items;
  if (by_slot) {
    const Slots slots = slots_of(part);
    rotate_keys(part, rope_len, &slots);
    rotate_queries(part, piece, state, rope_len, slots);
  } else if (rotate) {
    rotate_keys(part, rope_len, nullptr);
  }
  part.part.ranges = part.ranges.data();
  part.part.n_ranges = static_cast<uint32_t>(part.ranges.size());
  part.part.items = part.null_items ? nullptr : part.items.data();
  part.part.log_weight = part.part.weight_width ? part.weights.data() : nullptr;
  if (c_.store.has_window()) split_last_part(state);
}

void AttendStage::split_last_part(const LayerState& state) {
  const std::vector<kvasir_lease> leases = leases_of(state);
  Part context = narrowed(parts_.back(), leases, false);
  Part window = narrowed(parts_.back(), leases, true);
  parts_.pop_back();
  for (Part* part : {&context, &window}) {
    if (part->ranges.empty()) continue;
    Part& kept = parts_.emplace_back(std::move(*part));
    kept.part.ranges = kept.ranges.data();
    kept.part.n_ranges = static_cast<uint32_t>(kept.ranges.size());
    kept.part.items = kept.items.data();
    kept.part.leases = kept.leases.data();
    kept.part.n_leases = static_cast<uint32_t>(kept.leases.size());
    kept.part.log_weight = kept.part.weight_width ? kept.weights.data() : nullptr;
  }
}

// The items of a part that lie in one of the two storages, and no row without any. `leases`: in the
// order of the part's items, of both.
AttendStage::Part AttendStage::narrowed(const Part& whole, const std::vector<kvasir_lease>& leases,
                                        bool in_window) const {
  Part made;
  made.part = whole.part;
  made.place = whole.place;
  made.in_window = in_window;
  made.null_items = false;
  std::vector<uint32_t> ordinal(leases.size(), UINT32_MAX);  // among those that stay
  for (size_t i = 0; i < leases.size(); ++i) {
    if (c_.store.in_window(leases[i]) != in_window) continue;
    ordinal[i] = static_cast<uint32_t>(made.leases.size());
    made.leases.push_back(leases[i]);
    if (in_window) made.leases.back().format = c_.store.window_format(leases[i]);
  }
  const uint32_t per = whole.part.unit == KVASIR_UNIT_TOKEN ? c_.geometry.block_size : 1;
  const uint32_t width = whole.part.weight_width;
  for (kvasir_attn_range range : whole.ranges) {
    const uint64_t begin = made.items.size();
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = whole.null_items ? static_cast<uint32_t>(i) : whole.items[i];
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

AttendStage::Slots AttendStage::slots_of(const Part& part) const {
  const uint32_t b = c_.geometry.block_size;
  Slots slots(c_.geometry.n_kv_heads, std::vector<uint32_t>(part.leases.size() * b, UINT32_MAX));
  for (const kvasir_attn_range& range : part.ranges) {
    uint32_t next = 0;
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = part.items[i];
      if (part.part.unit == KVASIR_UNIT_TOKEN)
        slots[range.kv_head][item] = next++;
      else
        for (uint32_t t = 0; t < part.leases[item].n_tokens; ++t)
          slots[range.kv_head][item * b + t] = next++;
    }
  }
  return slots;
}

// Each query moves to the slot of its own token, which may differ from kv head to kv head.
void AttendStage::rotate_queries(Part& part, const Piece& piece, const LayerState& state,
                                 uint64_t rope_len, const Slots& slots) {
  const uint32_t group = c_.group_size(), dim = c_.geometry.head_dim;
  const uint64_t width = uint64_t{c_.geometry.n_q_heads} * dim;
  const auto* from = static_cast<const float*>(part.part.q.data);
  std::vector<float>& copy = rotated_.emplace_back(n_queries_ * width);
  for (uint32_t i = 0; i < piece.n_q; ++i) {
    const uint32_t pos = piece.first_pos() + i;
    const uint64_t at = (uint64_t{piece.q_begin} + i) * width;
    std::copy(from + at, from + at + width, copy.data() + at);
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
      const uint32_t slot = slots[head][item_of(state, c_.geometry.block_size, head, pos)];
      const int32_t delta[] = {static_cast<int32_t>(slot) - static_cast<int32_t>(pos)};
      c_.model.rope().shift(copy.data() + at + uint64_t{head} * group * dim, 1, group, dim, delta,
                            rope_len);
    }
  }
  part.part.q = view_f32(copy.data(), n_queries_, c_.geometry.n_q_heads, dim);
}

std::vector<bool> AttendStage::attended_keys(const Part& part) const {
  const uint32_t heads = c_.geometry.n_kv_heads, b = c_.geometry.block_size;
  const auto is_partial = [](const kvasir_lease& lease) {
    return lease.state == KVASIR_LEASE_PARTIAL;
  };
  if (std::none_of(part.leases.begin(), part.leases.end(), is_partial)) return {};
  std::vector<bool> keys(part.leases.size() * b * heads);
  const uint32_t per = part.part.unit == KVASIR_UNIT_BLOCK ? b : 1;
  for (const kvasir_attn_range& range : part.ranges)
    for (uint64_t i = range.item_begin; i < range.item_end; ++i)
      for (uint64_t t = 0; t < per; ++t)
        keys[(uint64_t{part.items[i]} * per + t) * heads + range.kv_head] = true;
  return keys;
}

// Keys are stored before RoPE: a rotated f32 copy of the blocks this part touches, at the positions
// of their tokens or at their slots.
void AttendStage::rotate_keys(Part& part, uint64_t rope_len, const Slots* slots) {
  const uint32_t heads = c_.geometry.n_kv_heads, dim = c_.geometry.head_dim;
  const uint32_t b = c_.geometry.block_size;
  std::vector<bool> wanted(part.leases.size(), part.null_items);
  const uint32_t per = part.part.unit == KVASIR_UNIT_BLOCK ? 1 : b;
  for (const uint32_t item : part.items) wanted[item / per] = true;
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; block < wanted.size(); ++block)
    if (wanted[block] && part.leases[block].k) blocks.push_back(block);
  std::vector<float>& copy = rotated_.emplace_back(blocks.size() * b * heads * dim);
  const size_t n_formats = c_.store.formats().size();
  const std::vector<bool> attended = attended_keys(part);
  c_.pool.parallel_for(blocks.size(), 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    std::vector<uint32_t> pos(b);
    for (uint64_t i = begin; i < end; ++i) {
      kvasir_lease& lease = part.leases[blocks[i]];
      const kvasir_kv_format& format = c_.store.formats()[lease.format];
      const kernels::ElementType type = element_type(format.dtype_k);
      float* out = copy.data() + i * b * heads * dim;
      const bool one = lease.kv_head != KVASIR_ALL_HEADS;
      for (uint32_t t = 0; t < lease.n_tokens; ++t)
        for (uint32_t head = 0; head < (one ? 1 : heads); ++head) {
          const uint64_t key = (uint64_t{blocks[i]} * b + t) * heads + (one ? lease.kv_head : head);
          if (!attended.empty() && !attended[key]) continue;  // unspecified bytes
          kernels::convert_to_f32(type,
                                  static_cast<const std::byte*>(lease.k) +
                                      head * format.k_head_stride + t * format.k_token_stride,
                                  out + (uint64_t{t} * heads + head) * dim, dim);
        }
      if (slots) {
        for (uint32_t row = 0; row < lease.n_tokens * heads; ++row) {
          const uint32_t head = one ? lease.kv_head : row % heads;
          const uint32_t at[] = {(*slots)[head][blocks[i] * b + row / heads]};
          if (at[0] != UINT32_MAX && (!one || row % heads == 0))
            c_.model.rope().apply(out + uint64_t{row} * dim, 1, 1, dim, at, rope_len);
        }
      } else {
        if (lease.token_pos)
          std::copy_n(lease.token_pos, lease.n_tokens, pos.begin());
        else
          std::iota(pos.begin(), pos.end(), lease.pos_begin);
        c_.model.rope().apply(out, lease.n_tokens, heads, dim, {pos.data(), lease.n_tokens},
                              rope_len);
      }
      lease.k = out;
      lease.format += static_cast<uint32_t>(n_formats);
    }
  });
}

uint64_t AttendStage::attended_tokens(const Piece& piece, const LayerSelection& selection,
                                      const LayerState& state, uint32_t head,
                                      uint64_t* selected) const {
  const uint32_t unit = c_.forced_unit();
  const ForcedRange forced =
      forced_range(c_.cache, unit, piece.first_pos() + 1, piece.seq->prompt_end);
  const uint64_t dead = state.dead.empty() ? 0 : state.dead[head].size() - state.live[head].size();
  if (selection.dense) {
    *selected = forced.window_begin - forced.sink_end - dead;
    return piece.kv_len - dead;
  }
  const HeadSelection& chosen = selection.head(head);
  const uint64_t per = selection.unit == KVASIR_UNIT_BLOCK ? c_.geometry.block_size : 1;
  *selected = chosen.index.size() * per;
  if (dead && per > 1) {
    *selected = 0;
    for (const uint32_t block : chosen.index)
      for (uint32_t t = 0; t < per; ++t)
        *selected += !is_dead(state, head, block * static_cast<uint32_t>(per) + t);
  }
  return *selected + selection.sink_end + (piece.kv_len - selection.window_begin);
}

void AttendStage::count(const Piece& piece, const LayerSelection& selection,
                        const LayerState& state) {
  const auto& format = c_.store.formats()[0];
  const uint64_t row_bytes = format.k_token_stride + format.v_token_stride;
  Engagement& e = c_.counters(piece.prefills());
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
    uint64_t selected = 0;
    const uint64_t attended = attended_tokens(piece, selection, state, head, &selected);
    e.tokens_considered += piece.kv_len;
    e.tokens_selected += selected;
    e.tokens_attended += attended;
    if (!c_.store.has_window()) e.kv_bytes_read += attended * row_bytes;
  }
}

// Hybrid mode: rows of the two storages may be of unlike sizes.
void AttendStage::count_bytes(const Piece& piece, size_t first_part) {
  Engagement& e = c_.counters(piece.prefills());
  for (size_t p = first_part; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    const auto& formats = c_.store.formats();
    const kvasir_kv_format& format = part.in_window ? formats.back() : formats.front();
    uint64_t tokens = 0;
    for (const uint32_t item : part.items)
      tokens += part.part.unit == KVASIR_UNIT_TOKEN ? 1 : part.leases[item].n_tokens;
    const uint64_t bytes = tokens * (format.k_token_stride + format.v_token_stride);
    e.kv_bytes_read += bytes;
    if (part.in_window) e.window_kv_bytes_read += bytes;
  }
}

uint32_t AttendStage::mass_follows(uint32_t layer, const std::vector<Piece>& pieces) const {
  if (c_.dense_layer[layer]) return 0;
  uint32_t at = 0;
  for (const Piece& piece : pieces)
    at |= piece.prefills() ? KVASIR_MASS_AT_PREFILL : KVASIR_MASS_AT_DECODE;
  uint32_t wanted = 0;
  for (const auto& selector : c_.pipeline.selectors)
    if (selector->limits().mass_level != KVASIR_MASS_LISTS) wanted |= selector->limits().mass_at;
  for (const SlabOwner& owner : c_.owners) wanted |= owner.layout.mass_at;
  return wanted & at ? KVASIR_ATTN_MASS_FOLLOWS : 0;
}

void AttendStage::report(uint32_t layer, const std::vector<Piece>& pieces) const {
  const uint32_t b = c_.geometry.block_size;
  for (const Piece& batch_piece : pieces) {
    std::vector<std::vector<uint32_t>> tokens(c_.geometry.n_kv_heads);
    for (const Part& part : parts_) {
      if (part.place != batch_piece.place) continue;
      for (const kvasir_attn_range& range : part.ranges)
        for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
          const uint32_t item = part.null_items ? static_cast<uint32_t>(i) : part.items[i];
          const bool block = part.part.unit == KVASIR_UNIT_BLOCK;
          const kvasir_lease& lease = part.part.leases[block ? item : item / b];
          for (uint32_t t = block ? 0 : item % b; t < (block ? lease.n_tokens : item % b + 1); ++t)
            tokens[range.kv_head].push_back(lease.token_pos ? lease.token_pos[t]
                                                            : lease.pos_begin + t);
        }
    }
    for (uint32_t head = 0; head < tokens.size(); ++head) {  // parts may share tokens
      std::sort(tokens[head].begin(), tokens[head].end());
      tokens[head].erase(std::unique(tokens[head].begin(), tokens[head].end()), tokens[head].end());
      c_.on_attend(layer, batch_piece.seq->id, head, tokens[head]);
    }
  }
}

void AttendStage::attend(uint32_t layer, std::vector<Piece>& pieces,
                         const std::vector<const LayerSelection*>& selections,
                         const Queries& queries, float* o) {
  parts_.clear();
  rotated_.clear();
  n_queries_ = queries.n;
  contributed_o_ = queries.contributed_o;
  contributed_lse_ = queries.contributed_lse;
  for (uint32_t i = 0; i < pieces.size(); ++i) {
    pieces[i].place = i;
    if (pieces[i].seq->fault) continue;
    const size_t n_parts = parts_.size();
    const bool made = guard_piece(pieces[i], [&] {
      add_parts(layer, i, pieces[i], *selections[i], queries, queries.constant != nullptr);
    });
    if (made)
      count(pieces[i], *selections[i], pieces[i].seq->layers[layer]);
    else
      parts_.resize(n_parts);
    if (made && c_.store.has_window()) count_bytes(pieces[i], n_parts);
  }
  std::erase_if(pieces, [](const Piece& piece) { return piece.seq->fault != nullptr; });
  if (c_.on_attend) report(layer, pieces);
  lse_.assign(queries.n * c_.geometry.n_q_heads, -INFINITY);
  if (pieces.empty()) return;
  for (Side& side : sides_) hand_over_queries(side);
  try {
    run(layer, pieces, o);
  } catch (const PluginError&) {
    if (pieces.size() == 1)
      pieces[0].seq->fail(std::current_exception());
    else  // whose fault it is shows when each row is attended alone
      for (const Piece& piece : pieces) guard_piece(piece, [&] { run(layer, {piece}, o); });
    std::erase_if(pieces, [](const Piece& piece) { return piece.seq->fault != nullptr; });
  }
}

void AttendStage::run(uint32_t layer, const std::vector<Piece>& pieces, float* o) {
  if (sides_.size() == 1) {
    run_side(sides_[0], layer, pieces, o, lse_.data());
  } else {
    const uint64_t heads = c_.geometry.n_q_heads, width = heads * c_.geometry.v_dim;
    for (const Piece& piece : pieces) {
      std::fill_n(o + piece.q_begin * width, piece.n_q * width, 0.0f);
      std::fill_n(lse_.begin() + static_cast<ptrdiff_t>(piece.q_begin * heads), piece.n_q * heads,
                  kernels::kEmptyLse);
    }
    for (Side& side : sides_) {
      side.o.resize(n_queries_ * width);
      side.lse.resize(n_queries_ * heads);
      if (run_side(side, layer, pieces, side.o.data(), side.lse.data()))
        merge_side(side, pieces, o);
    }
  }
  if (c_.check_numerics)
    for (const Piece& piece : pieces) check_finite(layer, piece, o);
  merge_contribution(pieces, o);
}

bool AttendStage::run_side(Side& side, uint32_t layer, const std::vector<Piece>& pieces, float* o,
                           float* lse) {
  abi_parts_.clear();
  for (const Part& part : parts_)
    for (const Piece& piece : pieces)
      if (piece.place == part.place && part.in_window == side.in_window)
        abi_parts_.push_back(part.part);
  if (abi_parts_.empty() && sides_.size() > 1) return false;
  const kvasir_attn_in in{sizeof(kvasir_attn_in), mass_follows(layer, pieces),
                          static_cast<uint32_t>(abi_parts_.size()), sizeof(kvasir_attn_part),
                          abi_parts_.data()};
  Attention& backend = *side.backend;
  const kvasir_view o_host = view_f32(o, n_queries_, c_.geometry.n_q_heads, c_.geometry.v_dim);
  const kvasir_view lse_host = view_f32(lse, n_queries_, c_.geometry.n_q_heads);
  const kvasir_view o_there = side.bridge->to_writer(backend, o_host, side.o_hold);
  const kvasir_view lse_there = side.bridge->to_writer(backend, lse_host, side.lse_hold);
  kvasir_attn_out out{sizeof(kvasir_attn_out), 0, o_there, lse_there, 0};
  const std::vector<Piece> whole = whole_pieces(pieces);
  const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, layer, whole, KVASIR_UNIT_BLOCK, nullptr);
  const kvasir_status status = backend.run(step.step(), in, out);
  if (status != KVASIR_OK)
    throw PluginError(
        backend.id(), "run", status,
        "layer " + std::to_string(layer) + ": returned status " + std::to_string(status));
  bring_back(side, pieces, o_there, o_host);
  bring_back(side, pieces, lse_there, lse_host);
  const bool in_prefill = std::all_of(pieces.begin(), pieces.end(),
                                      [](const Piece& piece) { return piece.prefills(); });
  c_.counters(in_prefill).backend_skipped += out.keys_skipped;
  return true;
}

void AttendStage::merge_side(const Side& side, const std::vector<Piece>& pieces, float* o) {
  const uint64_t heads = c_.geometry.n_q_heads, v_dim = c_.geometry.v_dim;
  const uint32_t group = c_.group_size();
  for (const Part& part : parts_) {
    const bool runs = std::any_of(pieces.begin(), pieces.end(),
                                  [&](const Piece& piece) { return piece.place == part.place; });
    if (!runs || part.in_window != side.in_window) continue;
    for (const kvasir_attn_range& range : part.ranges)
      for (uint64_t query = range.q_begin; query < uint64_t{range.q_begin} + range.n_q; ++query)
        for (uint64_t head = range.kv_head * group; head < (range.kv_head + 1) * group; ++head) {
          const uint64_t at = query * heads + head;
          kernels::merge_attention(o + at * v_dim, &lse_[at], side.o.data() + at * v_dim,
                                   side.lse[at], v_dim);
        }
  }
}

void AttendStage::merge_contribution(const std::vector<Piece>& pieces, float* o) {
  if (!contributed_lse_) return;
  const uint64_t heads = c_.geometry.n_q_heads, dim = c_.geometry.v_dim;
  for (const Piece& piece : pieces)
    for (uint64_t i = piece.q_begin * heads; i < (uint64_t{piece.q_begin} + piece.n_q) * heads; ++i)
      kernels::merge_attention(o + i * dim, &lse_[i], contributed_o_ + i * dim, contributed_lse_[i],
                               dim);
}

// Each query sees itself at least: an lse of -inf is wrong, too.
void AttendStage::check_finite(uint32_t layer, const Piece& piece, const float* o) const {
  const auto refuse = [&](const char* what, uint64_t query) {
    throw PluginError(c_.pipeline.attention->id(), "run", KVASIR_ERR_INTERNAL,
                      "layer " + std::to_string(layer) + ": " + what + " of query " +
                          std::to_string(query) + " is not finite");
  };
  const uint64_t heads = c_.geometry.n_q_heads, width = heads * c_.geometry.v_dim;
  for (uint64_t query = piece.q_begin; query < uint64_t{piece.q_begin} + piece.n_q; ++query) {
    for (uint64_t i = query * heads; i < (query + 1) * heads; ++i)
      if (!std::isfinite(lse_[i])) refuse("lse", query);
    for (uint64_t i = query * width; i < (query + 1) * width; ++i)
      if (!std::isfinite(o[i])) refuse("output", query);
  }
}

// Parts point into the stage they come from, which keeps them until its next attend().
void AttendStage::adopt(const AttendStage& other) {
  parts_.clear();
  for (const Part& part : other.parts_) {
    Part& copy = parts_.emplace_back();
    copy.part = part.part;
    copy.ranges = part.ranges;
    copy.items = part.items;
    copy.null_items = part.null_items;
    copy.place = part.place;
    copy.in_window = part.in_window;
  }
  lse_ = other.lse_;
  n_queries_ = other.n_queries_;
}

// Queries and their positions, where the backend reads them; parts share most of them.
void AttendStage::hand_over_queries(Side& side) {
  if (side.backend->reads(KVASIR_MEM_HOST)) return;
  std::map<const void*, kvasir_view> there;
  for (Part& part : parts_) {
    if (part.in_window != side.in_window) continue;
    for (kvasir_view* view : {&part.part.q, &part.part.q_pos}) {
      const auto [at, is_new] = there.try_emplace(view->data);
      if (is_new) {
        if (side.queries.size() < there.size()) side.queries.emplace_back();
        at->second = side.bridge->to_reader(*side.backend, *view, side.queries[there.size() - 1]);
      }
      *view = at->second;
    }
  }
}

// Results of the queries of this call: what other calls wrote beside them stays.
void AttendStage::bring_back(const Side& side, const std::vector<Piece>& pieces,
                             const kvasir_view& written, const kvasir_view& into) {
  for (size_t r = 0; r < pieces.size();) {
    const uint64_t begin = pieces[r].q_begin;
    uint64_t end = begin;
    for (; r < pieces.size() && pieces[r].q_begin == end; ++r) end += pieces[r].n_q;
    side.bridge->from_writer(written, into, begin, end);
  }
}

// What one backend is asked the mass of. Parts of all sides follow one another in `value`.
struct AttendStage::MassCall {
  std::vector<const Part*> used;
  std::vector<size_t> piece_of;                         // of each in the call's rows
  std::deque<std::vector<kvasir_attn_range>> ranges{};  // of each, for the queries that count
  std::vector<uint64_t> offsets{0};                     // [rows of all parts + 1], in keys
  std::vector<float> value{};                           // [key][group_size]
};

// Fills `of.value` for the parts of one side, which stand together.
void AttendStage::ask_mass(Side& side, uint32_t layer, const std::vector<Piece>& pieces,
                           MassCall& of) {
  const uint32_t group = c_.group_size();
  std::vector<kvasir_attn_part> parts;
  std::vector<uint64_t> offsets;  // from 0 on
  uint64_t first = 0;             // key that value begins with
  size_t range_index = 0;
  for (size_t p = 0; p < of.used.size(); ++p) {
    const size_t n = of.ranges[p].size();
    if (of.used[p]->in_window == side.in_window) {
      if (offsets.empty()) {
        first = of.offsets[range_index];
        offsets.push_back(0);
      }
      for (size_t r = 1; r <= n; ++r) offsets.push_back(of.offsets[range_index + r] - first);
      parts.push_back(of.used[p]->part);
      parts.back().ranges = of.ranges[p].data();
    }
    range_index += n;
  }
  if (offsets.empty()) {
    if (sides_.size() > 1) return;
    offsets.push_back(0);
  }
  const kvasir_attn_in in{sizeof(kvasir_attn_in), 0, static_cast<uint32_t>(parts.size()),
                          sizeof(kvasir_attn_part), parts.data()};
  const kvasir_view lse = view_f32(lse_.data(), n_queries_, c_.geometry.n_q_heads);
  const kvasir_view into = view_f32(of.value.data() + first * group, offsets.back(), group);
  const kvasir_view there = side.bridge->to_writer(*side.backend, into, side.mass_hold);
  const kvasir_attn_mass out{sizeof(kvasir_attn_mass), group, offsets.data(),
                             side.bridge->to_reader(*side.backend, lse, side.mass_lse_hold), there};
  const StepBuilder step(c_, KVASIR_MOMENT_ATTENDED, layer, pieces, KVASIR_UNIT_BLOCK, nullptr);
  side.backend->mass(step.step(), in, out);
  side.bridge->from_writer(there, into, 0, offsets.back());
}

std::vector<std::vector<HeadMass>> AttendStage::mass(uint32_t layer,
                                                     const std::vector<Piece>& pieces,
                                                     const std::vector<uint32_t>& from_pos,
                                                     bool window_only, bool values) {
  const uint32_t group = c_.group_size(), b = c_.geometry.block_size;
  MassCall of;
  const auto add = [&](const Part& part) {
    size_t at = 0;
    while (at < pieces.size() && part.place - pieces[at].place >= pieces[at].n_places) ++at;
    if (at == pieces.size()) return;
    of.used.push_back(&part);
    of.piece_of.push_back(at);
    auto& list = of.ranges.emplace_back(part.ranges);
    for (kvasir_attn_range& r : list) {
      const uint32_t first = position_of(pieces[at], r.q_begin);
      const uint32_t skip = from_pos[at] > first ? std::min(from_pos[at] - first, r.n_q) : 0;
      r.q_begin += skip;
      r.n_q -= skip;
      uint64_t keys = 0;
      for (uint64_t i = r.item_begin; i < r.item_end; ++i)
        keys += part.part.unit == KVASIR_UNIT_TOKEN
                    ? 1
                    : part.part.leases[part.null_items ? i : part.items[i]].n_tokens;
      of.offsets.push_back(of.offsets.back() + keys);
    }
  };
  for (const Side& side : sides_)
    for (const Part& part : parts_)
      if (part.in_window == side.in_window) add(part);
  of.value.resize(std::max<uint64_t>(of.offsets.back() * group, 1));
  if (values)
    for (Side& side : sides_) ask_mass(side, layer, pieces, of);

  // From the backend's order to positions per sequence and kv head; parts may share a token.
  std::vector<std::vector<HeadMass>> result(pieces.size(),
                                            std::vector<HeadMass>(c_.geometry.n_kv_heads));
  uint64_t range_index = 0;
  for (size_t p = 0; p < of.used.size(); ++p) {
    const Part& part = *of.used[p];
    const Piece& piece = pieces[of.piece_of[p]];
    const ForcedRange forced =
        forced_range(c_.cache, c_.forced_unit(), position_of(piece, part.ranges[0].q_begin) + 1,
                     piece.seq->prompt_end);
    for (const kvasir_attn_range& r : of.ranges[p]) {
      uint64_t key = of.offsets[range_index++];
      if (r.n_q == 0) continue;
      HeadMass& head = result[of.piece_of[p]][r.kv_head];
      // In hybrid mode the window's keys follow the context's.
      const bool merge =
          !head.pos.empty() && (!part.in_window || head.pos.back() >= first_key(part, r));
      std::map<uint32_t, std::vector<float>> sums;
      if (merge)
        for (size_t i = 0; i < head.pos.size(); ++i)
          sums[head.pos[i]].assign(head.value.begin() + static_cast<ptrdiff_t>(i * group),
                                   head.value.begin() + static_cast<ptrdiff_t>((i + 1) * group));
      const auto take = [&](uint32_t pos) {
        const float* v = of.value.data() + key++ * group;
        if (window_only && pos < forced.window_begin) return;
        if (merge) {
          auto& sum = sums[pos];
          sum.resize(group);
          for (uint32_t g = 0; g < group; ++g) sum[g] += v[g];
          return;
        }
        head.pos.push_back(pos);
        head.value.insert(head.value.end(), v, v + group);
      };
      for (uint64_t i = r.item_begin; i < r.item_end; ++i) {
        const uint32_t item = part.null_items ? static_cast<uint32_t>(i) : part.items[i];
        if (part.part.unit == KVASIR_UNIT_TOKEN) {
          const kvasir_lease& lease = part.part.leases[item / b];
          take(lease.token_pos ? lease.token_pos[item % b] : lease.pos_begin + item % b);
        } else {
          const kvasir_lease& lease = part.part.leases[item];
          for (uint32_t t = 0; t < lease.n_tokens; ++t) take(lease.pos_begin + t);
        }
      }
      if (!merge) continue;
      head = {};
      for (const auto& [pos, v] : sums) {
        head.pos.push_back(pos);
        head.value.insert(head.value.end(), v.begin(), v.end());
      }
    }
  }
  return result;
}

}  // namespace kvasir
