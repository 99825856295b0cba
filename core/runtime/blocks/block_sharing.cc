// Blocks that several lists hold: sharing them, forking lists, and private copies in place of
// shared blocks; see block_store.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "core/runtime/blocks/block_store.h"

namespace kvasir {

void BlockStore::share(const BlockList& from, BlockList& to) const {
  to.blocks = from.blocks;
  to.leases = from.leases;
  to.partial.clear();
  to.superseded.clear();
  to.told = 0;
  if (!moves()) return;
  for (size_t block = 0; block < to.blocks.size(); ++block) {
    const Block* held = to.blocks[block].get();
    if (!held || !held->sealed || !held->store->residency_.moves()) continue;
    to.leases[block].k = to.leases[block].v = nullptr;  // what `from` has leased, `from` releases
    to.leases[block].lease = 0;
  }
}

void BlockStore::fork(const BlockList& from, BlockList& to, uint32_t layer_index) {
  share(from, to);  // without leases that a call which failed has left
  if (from.blocks.empty() || !from.blocks.back() || from.blocks.back()->sealed) return;
  const auto last = static_cast<uint32_t>(from.blocks.size() - 1);
  const uint32_t n_tokens = from.leases[last].n_tokens;
  to.blocks.pop_back();
  to.leases.pop_back();
  const NewBlocks one[] = {{&to, layer_index, last, last + 1}};
  newest().create(one);
  copy_tokens(from.leases[last], to.leases[last], n_tokens);
  set_tokens(to, last, n_tokens);
}

uint32_t BlockStore::restore(BlockList& list, uint32_t layer_index,
                             std::span<const Hash128> names) {
  std::vector<kvasir_block_key> keys;
  for (const Hash128& name : names)
    keys.push_back({{name[0], name[1]},
                    layer_index,
                    static_cast<uint32_t>(keys.size()),
                    KVASIR_ALL_HEADS,
                    access_.block_size,
                    0,
                    nullptr});
  std::vector<kvasir_lease> leases(keys.size());
  if (!keys.empty()) access_.storage.restore(keys, leases.data());
  std::vector<std::shared_ptr<Block>> held(keys.size());  // what is not used is given back
  bool usable = true;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!leases[i].k || leases[i].state != KVASIR_LEASE_RESIDENT) continue;
    held[i] = std::make_shared<Block>();
    held[i]->key = keys[i];
    held[i]->key.handle = leases[i].handle;
    held[i]->lease = leases[i];
    held[i]->lease.format += access_.first_format;
    held[i]->lease.pos_begin = keys[i].block * access_.block_size;
    held[i]->lease.n_tokens = access_.block_size;
    held[i]->lease.token_pos = nullptr;
    held[i]->sealed = true;
    held[i]->store = this;
    usable = usable && leases[i].format < access_.n_formats;
  }
  if (!usable)
    throw PluginError(access_.storage.id(), "restore", KVASIR_ERR_INTERNAL,
                      "unknown format in a lease");
  uint32_t n = 0;
  while (n < held.size() && held[n]) {
    list.leases.push_back(held[n]->lease);
    list.blocks.push_back(std::move(held[n++]));
  }
  return n;
}

void BlockStore::truncate(LayerState& layer, uint32_t layer_index, uint32_t kv_len) {
  const uint32_t block_size = access_.block_size;
  layer.context_blocks = std::min(layer.context_blocks, kv_len / block_size);
  layer.told = std::min(layer.told, kv_len / block_size);
  const uint32_t n_blocks = (kv_len + block_size - 1) / block_size;
  if (layer.blocks.size() > n_blocks) {
    const LetGoTogether together(*this);
    layer.blocks.resize(n_blocks);
    layer.leases.resize(n_blocks);
  }
  const uint32_t n_tokens = kv_len % block_size;
  if (n_tokens == 0 || !layer.blocks.back()) return;
  if (layer.blocks.back()->sealed) reopen(layer, layer_index, n_blocks - 1);
  set_tokens(layer, n_blocks - 1, n_tokens);
}

void BlockStore::reopen(BlockList& layer, uint32_t layer_index, uint32_t block) {
  const uint32_t list[] = {block};
  make_resident(layer, list);
  const kvasir_lease from = layer.leases[block];
  BlockList fresh = newest().create_one(layer_index, block);
  copy_tokens(from, fresh.leases[block], from.n_tokens);
  set_tokens(fresh, block, from.n_tokens);
  replace(layer, block, fresh);
}

void BlockStore::replace(BlockList& layer, uint32_t block, const BlockList& fresh) {
  const std::shared_ptr<Block> old = layer.blocks[block];
  const kvasir_lease from = layer.leases[block];
  layer.blocks[block] = fresh.blocks[block];
  layer.leases[block] = fresh.leases[block];
  layer.told = std::min(layer.told, block);
  std::erase_if(layer.partial, [&](const NeededBlock& part) { return part.block == block; });
  old->store->residency_.release(*old, from);
}

void BlockStore::copy_tokens(const kvasir_lease& from, const kvasir_lease& to,
                             uint32_t n_tokens) const {
  const BlockStore& source = holder(from);
  const BlockStore& target = holder(to);
  if (&source != &target) return carry_over(source.bytes_, from, target.bytes_, to, n_tokens);
  const kvasir_kv_format& a = access_.format_of(from);
  const kvasir_kv_format& b = access_.format_of(to);
  if (a.dtype_k != b.dtype_k || a.dtype_v != b.dtype_v)
    throw Error(ErrorKind::kInternal, "storage " + source.access_.storage.id() +
                                          " cannot fork: a sealed block's type differs");
  const kvasir_token_copy all[] = {{&from, &to, 0, 0, n_tokens, KVASIR_ALL_HEADS}};
  source.bytes_.copy(all);
}

}  // namespace kvasir
