// Parts and their items; see part.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/part.h"

#include <algorithm>
#include <cstddef>

namespace kvasir {

void Part::point_to_own() {
  abi.ranges = ranges.data();
  abi.n_ranges = static_cast<uint32_t>(ranges.size());
  abi.items = null_items ? nullptr : items.data();
  abi.log_weight = abi.weight_width ? weights.data() : nullptr;
  if (leases.empty()) return;
  abi.leases = leases.data();
  abi.n_leases = static_cast<uint32_t>(leases.size());
}

Part Part::borrowed() const {
  Part copy;
  copy.ranges = ranges;
  copy.items = items;
  copy.null_items = null_items;
  copy.abi = abi;
  copy.place = place;
  copy.in_window = in_window;
  copy.by_window = by_window;
  return copy;
}

uint64_t n_keys(const Part& part, const kvasir_attn_range& range) {
  if (!part.in_blocks()) return range.item_end - range.item_begin;
  uint64_t keys = 0;
  for (uint64_t i = range.item_begin; i < range.item_end; ++i)
    keys += part.abi.leases[part.item(i)].n_tokens;
  return keys;
}

uint32_t first_key(const Part& part, const kvasir_attn_range& range, uint32_t block_size) {
  if (range.item_begin == range.item_end) return UINT32_MAX;
  const uint32_t item = part.item(range.item_begin);
  if (part.in_blocks()) return part.abi.leases[item].pos_begin;
  return position_in(part.abi.leases[item / block_size], item % block_size);
}

bool is_dead(const LayerState& state, uint32_t head, uint32_t token) {
  return !state.dead.empty() && token < state.dead[head].size() && state.dead[head][token];
}

uint32_t first_item(const LayerState& state, uint32_t block_size, uint32_t head) {
  size_t blocks = 0;
  for (uint32_t h = 0; h < head && h < state.packed.heads.size(); ++h)
    blocks += state.packed.heads[h].blocks.size();
  return static_cast<uint32_t>(blocks) * block_size;
}

uint32_t first_shared_item(const LayerState& state, uint32_t block_size) {
  return first_item(state, block_size, static_cast<uint32_t>(state.packed.heads.size()));
}

uint32_t item_of(const LayerState& state, uint32_t block_size, uint32_t head, uint32_t token) {
  if (token >= state.packed.end)
    return token - state.packed.end + first_shared_item(state, block_size);
  const auto& live = *state.packed.heads[head].live;
  return first_item(state, block_size, head) +
         static_cast<uint32_t>(std::lower_bound(live.begin(), live.end(), token) - live.begin());
}

ItemWalk::ItemWalk(const LayerState& state, uint32_t block_size, uint32_t head)
    : packed_end_(state.packed.end),
      first_(first_item(state, block_size, head)),
      first_shared_(first_shared_item(state, block_size)) {
  if (!packed_end_) return;
  const auto& live = *state.packed.heads[head].live;
  live_ = live.data();
  n_live_ = static_cast<uint32_t>(live.size());
}

std::vector<kvasir_lease> leases_by_item(const LayerState& state, uint32_t block_size) {
  std::vector<kvasir_lease> leases;
  for (const PackedHead& head : state.packed.heads)
    for (size_t block = 0; block < head.leases.size(); ++block) {
      leases.push_back(head.leases[block]);
      leases.back().token_pos = head.live->data() + block * block_size;
    }
  leases.insert(leases.end(), state.leases.begin() + state.packed.end / block_size,
                state.leases.end());
  return leases;
}

}  // namespace kvasir
