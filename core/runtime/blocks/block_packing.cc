// Packing: the tokens that eviction left move to blocks of their kv head, and the memory of the
// others becomes free; see BlockStore::pack().
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
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

void BlockStore::pack(std::span<const Packing> all) {
  lease_for_packing(all);
  std::vector<PackedHead> heads = open_packed(all);
  const uint32_t block_size = access_.block_size, n_heads = access_.n_kv_heads;
  std::vector<kvasir_token_copy> copies;
  std::vector<Full> full;
  for (size_t i = 0; i < heads.size(); ++i) {
    const auto head = static_cast<uint32_t>(i % n_heads);
    const auto of_head = copies_into(heads[i], head, *all[i / n_heads].layer, block_size);
    copies.insert(copies.end(), of_head.begin(), of_head.end());
    const auto n = static_cast<uint32_t>(heads[i].live->size());
    for (uint32_t block = 0; block < heads[i].blocks.size(); ++block)
      set_tokens(heads[i], block, std::min(block_size, n - block * block_size));
    full.push_back({&heads[i], 0, n / block_size});
  }
  bytes_.copy(copies);
  seal(full);
  const LetGoTogether together(*this);
  for (PackedHead& head : heads) release_step(head);
  for (size_t i = 0; i < all.size(); ++i) {
    LayerState& layer = *all[i].layer;
    release_step(layer);
    for (PackedHead& before : layer.packed.heads) release_step(before);
    for (uint32_t block = layer.packed.end / block_size; block < all[i].end / block_size; ++block) {
      layer.blocks[block].reset();
      layer.leases[block] = {};
    }
    const auto first = heads.begin() + static_cast<ptrdiff_t>(i * n_heads);
    layer.packed.heads.assign(std::make_move_iterator(first),
                              std::make_move_iterator(first + n_heads));
    layer.packed.end = all[i].end;
  }
}

// What is packed anew, and what was packed before.
void BlockStore::lease_for_packing(std::span<const Packing> all) {
  std::vector<Leaving> leaving;
  for (const Packing& packing : all)
    leaving.push_back({packing.layer, packing.layer_index, packing.end / access_.block_size});
  leave_window(leaving);
  std::vector<ListNeeds> needs;
  for (const Packing& packing : all) {
    const uint32_t begin = packing.layer->packed.end / access_.block_size;
    std::vector<uint32_t> blocks(packing.end / access_.block_size - begin);
    std::iota(blocks.begin(), blocks.end(), begin);
    needs.push_back(needs_of(*packing.layer, blocks));
    for (PackedHead& head : packing.layer->packed.heads) needs.push_back(needs_all(head));
  }
  make_resident(needs);
}

std::vector<PackedHead> BlockStore::open_packed(std::span<const Packing> all) {
  const uint32_t block_size = access_.block_size;
  std::vector<PackedHead> heads(all.size() * access_.n_kv_heads);
  std::vector<NewBlocks> ranges;
  for (size_t i = 0; i < heads.size(); ++i) {
    const Packing& packing = all[i / access_.n_kv_heads];
    const auto kv_head = static_cast<uint32_t>(i % access_.n_kv_heads);
    const auto n = static_cast<uint32_t>(packing.live[kv_head].size());
    heads[i].live = std::make_shared<const std::vector<uint32_t>>(packing.live[kv_head]);
    ranges.push_back(
        {&heads[i], packing.layer_index, 0, (n + block_size - 1) / block_size, kv_head});
  }
  create(ranges);
  return heads;
}

}  // namespace kvasir
