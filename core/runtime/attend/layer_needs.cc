// What a pass needs of its layer; see layer_needs.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/layer_needs.h"

#include <algorithm>
#include <utility>

#include "core/runtime/attend/part.h"

namespace kvasir {

void LayerNeeds::add_all(LayerState& layer) { of(layer, c_.geometry.n_kv_heads).all = true; }

void LayerNeeds::add_block(LayerState& layer, uint32_t kv_head, uint32_t block) {
  of(layer, c_.geometry.n_kv_heads).tokens.add_block(kv_head, block);
}

void LayerNeeds::add_item(LayerState& layer, uint32_t kv_head, uint32_t item) {
  const uint32_t b = c_.geometry.block_size, first_shared = first_shared_item(layer, b);
  if (item < first_shared)
    of(layer.packed.heads[kv_head], 1).tokens.add_token(0, item - first_item(layer, b, kv_head));
  else
    of(layer, c_.geometry.n_kv_heads)
        .tokens.add_token(kv_head, item - first_shared + layer.packed.end);
}

LayerNeeds::OfList& LayerNeeds::of(BlockList& list, uint32_t n_heads) {
  if (last_ < lists_.size() && lists_[last_].list == &list) return lists_[last_];
  const auto at = std::find_if(lists_.begin(), lists_.end(),
                               [&](const OfList& known) { return known.list == &list; });
  last_ = static_cast<size_t>(at - lists_.begin());
  if (at == lists_.end())
    lists_.push_back({&list, NeededTokens(c_.geometry.block_size, n_heads, list.blocks.size())});
  return lists_[last_];
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
