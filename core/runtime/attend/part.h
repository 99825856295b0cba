// Parts of an attention call, and what their items stand for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_lists.h>
#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "core/runtime/sequence/sequence.h"

namespace kvasir {

// Owns what a kvasir_attn_part points to. Items count through the packed blocks of kv head 0, 1, …
// and then the blocks of all heads.
struct Part {
  std::vector<kvasir_attn_range> ranges;
  std::vector<uint32_t> items;
  std::vector<float> weights;        // [item][abi.weight_width], or of no use where that is 0
  std::vector<kvasir_lease> leases;  // in the order of items; empty: the layer's own serve
  bool null_items = true;            // item i is block i of the layer
  kvasir_attn_part abi{};
  // Items that are on the device until the core has read them, and stand for nothing here.
  struct ListThere {
    uint32_t kv_head;
    uint64_t item_begin, n, first;  // as kvasir_attn_list
  };
  std::vector<ListThere> there;
  kvasir_attn_owner owner{};  // where there are such
  uint32_t place = 0;         // Piece::place
  bool in_window = false;     // hybrid mode: its blocks are in the window's storage
  bool by_window = false;     // the window's backend attends to them
  bool rotates_keys = false;  // they are kept before RoPE and attended at their positions

  bool in_blocks() const { return abi.unit == KVASIR_UNIT_BLOCK; }
  // What entry i of the items says.
  uint32_t item(uint64_t i) const { return null_items ? static_cast<uint32_t>(i) : items[i]; }
  // Makes abi point to what this owns. To be called again after a move of it.
  void point_to_own();
  // Without weights and leases: abi points to what this owns, which must outlive the copy.
  Part borrowed() const;
};

// The true position of token t of a lease.
inline uint32_t position_in(const kvasir_lease& lease, uint32_t t) {
  return lease.token_pos ? lease.token_pos[t] : lease.pos_begin + t;
}

// Calls fn(position) for each key of a range, in the order in which a backend enumerates them.
template <class Fn>
void for_each_key(const Part& part, const kvasir_attn_range& range, uint32_t block_size, Fn&& fn) {
  const kvasir_lease* leases = part.abi.leases;
  for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
    const uint32_t item = part.item(i);
    if (part.in_blocks())
      for (uint32_t t = 0; t < leases[item].n_tokens; ++t) fn(position_in(leases[item], t));
    else
      fn(position_in(leases[item / block_size], item % block_size));
  }
}

// Keys of a range.
uint64_t n_keys(const Part& part, const kvasir_attn_range& range);
// Position of a range's first key; UINT32_MAX: it has none.
uint32_t first_key(const Part& part, const kvasir_attn_range& range, uint32_t block_size);

// Whether the token was evicted for that kv head.
bool is_dead(const LayerState& state, uint32_t head, uint32_t token);
// The item that kv head `head`'s packed blocks begin with, in tokens.
uint32_t first_item(const LayerState& state, uint32_t block_size, uint32_t head);
// The item that the blocks of all heads begin with, in tokens.
uint32_t first_shared_item(const LayerState& state, uint32_t block_size);
// Where a living token stands, in tokens.
uint32_t item_of(const LayerState& state, uint32_t block_size, uint32_t head, uint32_t token);
// item_of() for tokens of one kv head that ascend: one walk along those that live, however many are
// asked for. Refers to the state.
class ItemWalk {
 public:
  ItemWalk(const LayerState& state, uint32_t block_size, uint32_t head);
  uint32_t item(uint32_t token) {
    if (token >= packed_end_) return token - packed_end_ + first_shared_;
    while (at_ < n_live_ && live_[at_] < token) ++at_;
    return first_ + at_;
  }

 private:
  const uint32_t* live_ = nullptr;
  uint32_t n_live_ = 0, at_ = 0;
  uint32_t packed_end_, first_, first_shared_;
};
// The leases of a layer in the order of items.
std::vector<kvasir_lease> leases_by_item(const LayerState& state, uint32_t block_size);

}  // namespace kvasir
