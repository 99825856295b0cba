// What a pass needs of its layer; see layer_needs.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/layer_needs.h"

#include <algorithm>

namespace kvasir {

void LayerNeeds::add(LayerState& layer, const Part& part) {
  OfList& shared = of(layer, c_.geometry.n_kv_heads);
  if (part.null_items) {
    shared.all = true;
    return;
  }
  for (const kvasir_attn_range& range : part.ranges) {
    if (!part.in_blocks()) {
      add_tokens(layer, part, range);
      continue;
    }
    for (uint64_t i = range.item_begin; i < range.item_end; ++i)  // nothing is packed
      shared.tokens.add_block(range.kv_head, part.items[i]);
  }
}

void LayerNeeds::add_tokens(LayerState& layer, const Part& part, const kvasir_attn_range& range) {
  const uint32_t b = c_.geometry.block_size, head = range.kv_head;
  const uint32_t first = first_item(layer, b, head), first_shared = first_shared_item(layer, b);
  NeededTokens& shared = of(layer, c_.geometry.n_kv_heads).tokens;
  NeededTokens* packed =
      layer.packed.heads.empty() ? nullptr : &of(layer.packed.heads[head], 1).tokens;
  for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
    const uint32_t item = part.items[i];
    if (item < first_shared)
      packed->add_token(0, item - first);
    else
      shared.add_token(head, item - first_shared + layer.packed.end);
  }
}

LayerNeeds::OfList& LayerNeeds::of(BlockList& list, uint32_t n_heads) {
  const auto at = std::find_if(lists_.begin(), lists_.end(),
                               [&](const OfList& known) { return known.list == &list; });
  if (at != lists_.end()) return *at;
  lists_.push_back({&list, NeededTokens(c_.geometry.block_size, n_heads, list.blocks.size())});
  return lists_.back();
}

std::vector<ListNeeds> LayerNeeds::take() {
  std::vector<ListNeeds> needs;
  for (OfList& of_list : lists_)
    needs.push_back(of_list.all ? c_.store.needs_all(*of_list.list)
                                : ListNeeds{of_list.list, of_list.tokens.take()});
  lists_.clear();
  return needs;
}

}  // namespace kvasir
