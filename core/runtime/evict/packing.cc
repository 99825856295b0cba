// Memory of evicted tokens; see packing.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/evict/packing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/runtime/select/index_lists.h"

namespace kvasir {

void free_dead_blocks(const RunContext& c, LayerState& state, const std::set<uint32_t>& among) {
  const size_t b = c.geometry.block_size;
  const BlockStore::LetGoTogether together(c.store);
  for (const uint32_t block : among) {
    if (!state.blocks[block]) continue;
    bool dead = true;
    for (const auto& head : state.dead)
      for (size_t t = block * b; t < (block + 1) * b && dead; ++t)
        dead = t < head.size() && head[t];
    if (!dead) continue;
    state.blocks[block].reset();
    state.leases[block] = {};
  }
}

std::optional<BlockStore::Packing> packing_of(const RunContext& c, const Sequence& seq,
                                              LayerState& state, uint32_t layer, uint32_t kv_len) {
  const uint32_t b = c.geometry.block_size, heads = c.geometry.n_kv_heads;
  const uint32_t end =
      forced_range(c.cache, KVASIR_UNIT_BLOCK, kv_len, seq.prompt_end).window_begin;
  if (end <= state.packed.end || !c.store.can_pack()) return {};
  // Counted first: most evictions free no block, and a step must not copy what it keeps.
  const auto living_before_end = [&](uint32_t head) {
    const auto& live = state.live[head];
    return std::lower_bound(live.cbegin(), live.cend(), end);
  };
  const auto untouched = [&](uint32_t head) {  // tokens that came after the last eviction
    return std::min(end, static_cast<uint32_t>(state.dead[head].size()));
  };
  uint64_t held = 0, needed = 0;  // blocks of one head
  for (uint32_t head = 0; head < heads; ++head) {
    const uint64_t n = static_cast<uint64_t>(living_before_end(head) - state.live[head].cbegin()) +
                       (end - untouched(head));
    needed += (n + b - 1) / b;
    if (state.packed.end) held += state.packed.heads[head].blocks.size();
  }
  for (uint32_t block = state.packed.end / b; block < end / b; ++block)
    held += state.blocks[block] ? heads : 0;
  if (needed >= held) return {};
  std::vector<std::vector<uint32_t>> live(heads);
  for (uint32_t head = 0; head < heads; ++head) {
    live[head].assign(state.live[head].cbegin(), living_before_end(head));
    for (uint32_t token = untouched(head); token < end; ++token) live[head].push_back(token);
  }
  return BlockStore::Packing{&state, layer, end, std::move(live)};
}

}  // namespace kvasir
