// Packing: the tokens that eviction left move to blocks of their kv head, and the memory of the
// others becomes free; see BlockStore::pack().
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "core/runtime/blocks/block_store.h"

namespace kvasir {
namespace {

// What moves the tokens `to.live` of one kv head to the blocks of `to`: those below before.end from
// the packed blocks, the others from the blocks of the layer. Points to leases of both lists.
std::vector<kvasir_token_copy> copies_into(const PackedHead& to, uint32_t kv_head,
                                           const LayerState& layer, uint32_t block_size) {
  const PackedTokens& before = layer.packed;
  std::vector<kvasir_token_copy> copies;
  uint32_t old_slot = 0;
  for (uint32_t slot = 0; slot < to.live->size(); ++slot) {
    const uint32_t token = (*to.live)[slot];
    kvasir_token_copy copy{&layer.leases[token / block_size],
                           &to.leases[slot / block_size],
                           token % block_size,
                           slot % block_size,
                           1,
                           kv_head};
    if (token < before.end) {
      const PackedHead& old = before.heads[kv_head];
      while ((*old.live)[old_slot] != token) ++old_slot;
      copy.from = &old.leases[old_slot / block_size];
      copy.from_token = old_slot % block_size;
    }
    kvasir_token_copy* last = copies.empty() ? nullptr : &copies.back();
    if (last && last->from == copy.from && last->to == copy.to &&
        last->from_token + last->n_tokens == copy.from_token)
      ++last->n_tokens;
    else
      copies.push_back(copy);
  }
  return copies;
}

bool have_one_type(std::span<const kvasir_kv_format> formats) {
  return std::all_of(formats.begin(), formats.end(), [&](const kvasir_kv_format& format) {
    return format.dtype_k == formats[0].dtype_k && format.dtype_v == formats[0].dtype_v;
  });
}

}  // namespace

bool BlockStore::can_pack() const {
  const std::span all(access_.formats);
  const uint32_t first = access_.first_format, n = access_.n_formats;
  return have_one_type(all.subspan(first, n)) && have_one_type(all.subspan(first + n));
}

void BlockStore::pack(LayerState& layer, uint32_t layer_index, uint32_t end,
                      std::vector<std::vector<uint32_t>> live) {
  leave_window(layer, layer_index, end / access_.block_size);
  const uint32_t begin = layer.packed.end / access_.block_size;
  std::vector<uint32_t> blocks(end / access_.block_size - begin);
  std::iota(blocks.begin(), blocks.end(), begin);
  make_resident(layer, blocks);
  PackedTokens packed;
  packed.end = end;
  packed.heads.reserve(access_.n_kv_heads);
  for (uint32_t head = 0; head < access_.n_kv_heads; ++head)
    packed.heads.push_back(pack_head(layer, layer_index, head, std::move(live[head])));
  release_step(layer);
  const DropTogether together(*this);
  for (const uint32_t block : blocks) {
    layer.blocks[block].reset();
    layer.leases[block] = {};
  }
  layer.packed = std::move(packed);
}

PackedHead BlockStore::pack_head(LayerState& layer, uint32_t layer_index, uint32_t head,
                                 std::vector<uint32_t> live) {
  const uint32_t block_size = access_.block_size;
  const auto n = static_cast<uint32_t>(live.size());
  PackedHead* before = layer.packed.end ? &layer.packed.heads[head] : nullptr;
  PackedHead to;
  to.live = std::make_shared<const std::vector<uint32_t>>(std::move(live));
  create_range(to, layer_index, 0, (n + block_size - 1) / block_size, head);
  if (before) make_all_resident(*before);
  bytes_.copy(copies_into(to, head, layer, block_size));
  for (uint32_t block = 0; block < to.blocks.size(); ++block)
    set_tokens(to, block, std::min(block_size, n - block * block_size));
  seal(to, 0, n / block_size);
  release_step(to);
  if (before) release_step(*before);
  return to;
}

}  // namespace kvasir
