// Creating, writing, moving, sealing and dropping blocks; see block_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/block_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace kvasir {
namespace {

// Distinguishes the blocks of this process from any other's in a storage that outlives it.
uint64_t run_nonce() {
  static std::atomic<uint64_t> counter{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return static_cast<uint64_t>(now) * 0x9e3779b97f4a7c15ULL + ++counter;
}

BlockAccess access_to(Storage& storage, MemoryBridge& bridge, uint32_t block_size,
                      uint32_t n_kv_heads, uint32_t head_dim, uint32_t v_dim) {
  BlockAccess access{storage, bridge, block_size, n_kv_heads, head_dim, v_dim, storage.formats()};
  access.n_formats = static_cast<uint32_t>(access.formats.size());
  return access;
}

}  // namespace

Block::~Block() {
  if (store) store->drop(*this);
}

BlockStore::BlockStore(Storage& storage, MemoryBridge& bridge, HostServices& services,
                       ThreadPool& pool, uint32_t block_size, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t v_dim)
    : access_(access_to(storage, bridge, block_size, n_kv_heads, head_dim, v_dim)),
      values_(access_, pool),
      bytes_(access_),
      residency_(*this, access_, services),
      services_(services),
      nonce_(run_nonce()) {}

void BlockStore::set_window(BlockStore& window) {
  window_ = &window;
  access_.formats.insert(access_.formats.end(), window.access_.formats.begin(),
                         window.access_.formats.end());
  window.access_.first_format = access_.n_formats;
  window.access_.formats = access_.formats;
}

kvasir_block_key BlockStore::new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head) const {
  static std::atomic<uint64_t> counter{0};
  return {{nonce_, ++counter}, layer_index, block, kv_head, 0, 0, nullptr};
}

void BlockStore::create_range(BlockList& layer, uint32_t layer_index, uint32_t begin, uint32_t end,
                              uint32_t kv_head) {
  if (begin >= end) return;
  Storage& storage = access_.storage;
  std::vector<kvasir_block_key> keys;
  for (uint32_t block = begin; block < end; ++block)
    keys.push_back(new_key(layer_index, block, kv_head));
  std::vector<kvasir_lease> leases(keys.size());
  const kvasir_status status = storage.acquire(keys, KVASIR_ACQUIRE_WRITE, leases.data());
  if (status != KVASIR_OK)
    throw Error(ErrorKind::kResource, "storage " + storage.id() + " has no space for " +
                                          std::to_string(keys.size()) + " more blocks of layer " +
                                          std::to_string(layer_index) +
                                          ": raise its limit or shorten the context (-c)");
  std::vector<std::shared_ptr<Block>> fresh;  // all of them: what fails must drop each
  bool usable = true;
  for (uint32_t block = begin; block < end; ++block) {
    auto made = std::make_shared<Block>();
    made->key = keys[block - begin];
    made->lease = leases[block - begin];
    made->lease.pos_begin = block * access_.block_size;
    made->lease.n_tokens = 0;
    made->lease.token_pos = nullptr;
    made->key.handle = made->lease.handle;
    made->store = this;
    usable = usable && made->lease.format < access_.n_formats && made->lease.k && made->lease.v;
    made->lease.format += access_.first_format;
    fresh.push_back(std::move(made));
  }
  if (!usable)
    throw PluginError(storage.id(), "acquire", KVASIR_ERR_INTERNAL,
                      "returned a write lease without memory or of an unknown format");
  layer.blocks.resize(end);
  layer.leases.resize(end);
  for (uint32_t block = begin; block < end; ++block) {
    layer.leases[block] = fresh[block - begin]->lease;
    layer.blocks[block] = std::move(fresh[block - begin]);
  }
}

void BlockStore::open_block(BlockList& list, uint32_t layer_index, uint32_t block, uint32_t kv_head,
                            bool in_window) {
  (in_window ? *window_ : *this).create_range(list, layer_index, block, block + 1, kv_head);
}

void BlockStore::set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const {
  list.leases[block].n_tokens = n_tokens;
  list.blocks[block]->lease.n_tokens = n_tokens;
  list.blocks[block]->key.n_tokens = n_tokens;
}

void BlockStore::append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const float* k,
                        const float* v, uint32_t n) {
  if (window_) return window_->append(layer, layer_index, kv_len, k, v, n);
  const uint32_t block_size = access_.block_size;
  const uint32_t n_blocks = (kv_len + n + block_size - 1) / block_size;
  create_range(layer, layer_index, static_cast<uint32_t>(layer.blocks.size()), n_blocks);
  values_.write(layer, kv_len, n, k, v);
  for (uint32_t block = kv_len / block_size; block < n_blocks; ++block)
    set_tokens(layer, block, std::min(block_size, kv_len + n - block * block_size));
}

void BlockStore::rewrite(LayerState& layer, uint32_t layer_index,
                         std::span<const uint32_t> positions, const float* k, const float* v) {
  std::vector<uint32_t> sealed;
  for (const uint32_t pos : positions) {
    const uint32_t block = pos / access_.block_size;
    if (!layer.blocks[block]->sealed) continue;
    reopen(layer, layer_index, block);
    layer.context_blocks = std::min(layer.context_blocks, block);
    sealed.push_back(block);
  }
  newest().values_.write(layer, positions, k, v);
  for (const uint32_t block : sealed) seal(layer, block, block + 1);
}

void BlockStore::read_tokens(BlockList& layer, std::span<const uint32_t> positions, float* k,
                             float* v) {
  const uint32_t block_size = access_.block_size;
  std::vector<uint32_t> blocks;
  for (const uint32_t pos : positions)
    if (blocks.empty() || blocks.back() != pos / block_size) blocks.push_back(pos / block_size);
  make_resident(layer, blocks);
  for (size_t i = 0; i < positions.size(); ++i) {
    const kvasir_lease& lease = layer.leases[positions[i] / block_size];
    holder(lease).values_.read(lease, positions[i] % block_size,
                               k + i * access_.n_kv_heads * access_.head_dim,
                               v + i * access_.n_kv_heads * access_.v_dim);
  }
}

void BlockStore::seal(BlockList& layer, uint32_t begin, uint32_t end, const ContentHash& content) {
  if (begin >= end) return;
  if (window_ && layer.is_in(*window_, begin)) return window_->seal(layer, begin, end, content);
  std::vector<kvasir_block_key> keys;
  std::vector<kvasir_lease> leases;
  for (uint32_t block = begin; block < end; ++block) {
    keys.push_back(layer.blocks[block]->key);
    if (const Hash128* name = content.block(block))
      std::copy(name->begin(), name->end(), keys.back().hash);
    leases.push_back(access_.as_storage_counts(layer.blocks[block]->lease));
  }
  access_.storage.seal(keys, leases.data());
  for (uint32_t block = begin; block < end; ++block) {
    kvasir_lease& lease = leases[block - begin];
    if (lease.format >= access_.n_formats)
      throw PluginError(access_.storage.id(), "seal", KVASIR_ERR_INTERNAL,
                        "unknown format in a lease");
    lease.format += access_.first_format;
    lease.pos_begin = block * access_.block_size;
    lease.n_tokens = access_.block_size;
    Block& sealed = *layer.blocks[block];
    sealed.lease = lease;
    sealed.key = keys[block - begin];
    sealed.key.handle = lease.handle;
    sealed.sealed = true;
    layer.leases[block] = lease;
  }
}

void BlockStore::leave_window(LayerState& layer, uint32_t layer_index, uint32_t end) {
  if (!window_) return;
  const auto is_next = [&](uint32_t block) { return layer.is_in(*window_, block); };
  for (uint32_t begin = layer.context_blocks; begin < end;) {
    if (!is_next(begin)) {
      ++begin;
      continue;
    }
    uint32_t stop = begin;
    std::vector<uint32_t> blocks;
    while (stop < end && is_next(stop)) blocks.push_back(stop++);
    make_resident(layer, blocks);
    BlockList fresh;
    fresh.blocks.resize(begin);
    fresh.leases.resize(begin);
    create_range(fresh, layer_index, begin, stop);
    for (const uint32_t block : blocks) {
      copy_tokens(layer.leases[block], fresh.leases[block], access_.block_size);
      set_tokens(fresh, block, access_.block_size);
    }
    for (const uint32_t block : blocks) replace(layer, block, fresh);
    seal(layer, begin, stop);
    begin = stop;
  }
  layer.context_blocks = std::max(layer.context_blocks, end);
}

void BlockStore::make_resident(BlockList& layer, std::span<const uint32_t> blocks) {
  if (!moves()) return;
  std::vector<NeededBlock> needed;
  needed.reserve(blocks.size());
  for (const uint32_t block : blocks) needed.push_back({block, {}});
  make_resident(layer, std::move(needed));
}

void BlockStore::make_resident(BlockList& layer, std::vector<NeededBlock> needed) {
  if (window_) window_->make_resident(layer, needed);
  residency_.make_resident(layer, std::move(needed));
}

void BlockStore::make_all_resident(BlockList& layer) {
  if (!moves()) return;
  std::vector<uint32_t> all(layer.blocks.size());
  std::iota(all.begin(), all.end(), 0);
  make_resident(layer, all);
}

void BlockStore::prefetch(BlockList& layer, std::vector<NeededBlock> needed) {
  if (window_) window_->prefetch(layer, needed);
  residency_.prefetch(layer, std::move(needed));
}

void BlockStore::count_transfers(Engagement& into) {
  residency_.count_waits(into);
  // The report has a place for the tiers of one storage, which is the context's.
  if (window_) window_->residency_.count_waits(into);
  residency_.count_tiers(into);
}

void BlockStore::release_step(BlockList& layer) {
  if (window_) window_->release_step(layer);
  residency_.release_step(layer);
}

uint64_t BlockStore::bytes_of_tokens(const kvasir_lease& lease, uint32_t n_tokens) const {
  return bytes_.size(lease, n_tokens);
}

std::vector<std::byte> BlockStore::save_tokens(const kvasir_lease& lease, uint32_t n_tokens) const {
  return holder(lease).bytes_.save(lease, n_tokens);
}

void BlockStore::load_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                             std::span<const std::byte> from) const {
  holder(lease).bytes_.load(lease, n_tokens, from);
}

kvasir_lease BlockStore::copy_to_host(const kvasir_lease& lease,
                                      std::vector<std::byte>& memory) const {
  const kvasir_lease copy = bytes_.lease_host_memory(lease, memory);
  carry_over(holder(lease).bytes_, lease, bytes_, copy, lease.n_tokens);
  return copy;
}

void BlockStore::drop(Block& block) noexcept {
  if (drops_held_ == 0)
    return drop_all(block.lease.lease ? std::vector{block.lease.lease} : std::vector<uint64_t>{},
                    {block.key});
  if (block.lease.lease) dropped_leases_.push_back(block.lease.lease);
  dropped_keys_.push_back(block.key);
}

void BlockStore::hold_drops(int n) noexcept {
  if (window_) window_->hold_drops(n);
  drops_held_ += n;
  if (drops_held_ > 0 || dropped_keys_.empty()) return;
  drop_all(std::exchange(dropped_leases_, {}), std::exchange(dropped_keys_, {}));
}

void BlockStore::drop_all(const std::vector<uint64_t>& leases,
                          const std::vector<kvasir_block_key>& keys) noexcept {
  try {
    if (!leases.empty()) access_.storage.release(leases);
    access_.storage.drop(keys, KVASIR_DROP_FORGET);
  } catch (const std::exception& e) {
    services_.log(KVASIR_LOG_ERROR, access_.storage.id(), e.what());
  }
}

}  // namespace kvasir
