// Creating, writing, moving, sealing and dropping blocks; see block_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/block_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "core/runtime/blocks/host_copies.h"

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

BlockAccess access_to_copies(BlockAccess access) {
  access.formats = copied_formats(access.formats, access.block_size, access.head_dim, access.v_dim);
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
      copies_(access_to_copies(access_)),
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
  copies_.formats = access_to_copies(access_).formats;
}

kvasir_block_key BlockStore::new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head) const {
  static std::atomic<uint64_t> counter{0};
  return {{nonce_, ++counter}, layer_index, block, kv_head, 0, 0, nullptr};
}

void BlockStore::create(std::span<const NewBlocks> all) {
  Storage& storage = access_.storage;
  std::vector<kvasir_block_key> keys;
  for (const NewBlocks& range : all)
    for (uint32_t block = range.begin; block < range.end; ++block)
      keys.push_back(new_key(range.layer_index, block, range.kv_head));
  if (keys.empty()) return;
  std::vector<kvasir_lease> leases(keys.size());
  const auto acquire = [&] {
    return storage.acquire(keys, KVASIR_ACQUIRE_WRITE, leases.data()) == KVASIR_OK;
  };
  if (!acquire() && !(residency_.release_kept() && acquire()))
    throw Error(ErrorKind::kResource, "storage " + storage.id() + " has no space for " +
                                          std::to_string(keys.size()) + " more blocks of layer " +
                                          std::to_string(keys[0].layer) +
                                          ": raise its limit or shorten the context (-c)");
  std::vector<std::shared_ptr<Block>> fresh;  // all of them: what fails must drop each
  bool usable = true;
  for (size_t i = 0; i < keys.size(); ++i) {
    auto made = std::make_shared<Block>();
    made->key = keys[i];
    made->lease = leases[i];
    made->lease.pos_begin = keys[i].block * access_.block_size;
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
  size_t next = 0;
  for (const NewBlocks& range : all) {
    if (range.begin >= range.end) continue;
    range.list->blocks.resize(range.end);
    range.list->leases.resize(range.end);
    for (uint32_t block = range.begin; block < range.end; ++block, ++next) {
      range.list->leases[block] = fresh[next]->lease;
      range.list->blocks[block] = std::move(fresh[next]);
    }
  }
}

BlockList BlockStore::create_one(uint32_t layer_index, uint32_t block) {
  BlockList list;
  const NewBlocks one[] = {{&list, layer_index, block, block + 1}};
  create(one);
  return list;
}

void BlockStore::open_block(BlockList& list, uint32_t layer_index, uint32_t block, uint32_t kv_head,
                            bool in_window) {
  const NewBlocks one[] = {{&list, layer_index, block, block + 1, kv_head}};
  (in_window ? *window_ : *this).create(one);
}

void BlockStore::open_blocks(std::span<const Growth> all) {
  if (window_) return window_->open_blocks(all);
  const uint32_t block_size = access_.block_size;
  std::vector<NewBlocks> ranges;
  for (const Growth& to : all)
    ranges.push_back({to.list, to.layer_index, static_cast<uint32_t>(to.list->blocks.size()),
                      (to.n_tokens + block_size - 1) / block_size});
  create(ranges);
}

void BlockStore::set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const {
  list.leases[block].n_tokens = n_tokens;
  list.blocks[block]->lease.n_tokens = n_tokens;
  list.blocks[block]->key.n_tokens = n_tokens;
}

void BlockStore::append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const KvRows& rows,
                        uint32_t n) {
  if (window_) return window_->append(layer, layer_index, kv_len, rows, n);
  const uint32_t block_size = access_.block_size;
  const uint32_t n_blocks = (kv_len + n + block_size - 1) / block_size;
  const Growth one[] = {{&layer, layer_index, kv_len + n}};
  open_blocks(one);
  values_.write(layer, kv_len, n, rows);
  for (uint32_t block = kv_len / block_size; block < n_blocks; ++block)
    set_tokens(layer, block, std::min(block_size, kv_len + n - block * block_size));
}

void BlockStore::rewrite(LayerState& layer, uint32_t layer_index,
                         std::span<const uint32_t> positions, const KvRows& rows) {
  std::vector<Full> sealed;
  for (const uint32_t pos : positions) {
    const uint32_t block = pos / access_.block_size;
    if (!layer.blocks[block]->sealed) continue;
    reopen(layer, layer_index, block);
    layer.context_blocks = std::min(layer.context_blocks, block);
    sealed.push_back({&layer, block, block + 1});
  }
  newest().values_.write(layer, positions, rows);
  seal(sealed);
}

uint64_t BlockStore::read_tokens(BlockList& layer, std::span<const uint32_t> positions, float* k,
                                 float* v) {
  const uint32_t block_size = access_.block_size;
  std::vector<uint32_t> blocks;
  for (const uint32_t pos : positions)
    if (blocks.empty() || blocks.back() != pos / block_size) blocks.push_back(pos / block_size);
  const uint64_t n_missed = make_resident(layer, blocks);
  for (size_t i = 0; i < positions.size(); ++i) {
    const kvasir_lease& lease = layer.leases[positions[i] / block_size];
    holder(lease).values_.read(lease, positions[i] % block_size,
                               k + i * access_.n_kv_heads * access_.head_dim,
                               v + i * access_.n_kv_heads * access_.v_dim);
  }
  return n_missed;
}

void BlockStore::seal(std::span<const Full> all) {
  std::vector<Full> in_window;
  std::vector<kvasir_block_key> keys;
  std::vector<kvasir_lease> leases;
  std::vector<kvasir_lease*> places;  // in the lists
  std::vector<Block*> blocks;
  for (const Full& full : all) {
    if (full.begin < full.end && window_ && full.list->is_in(*window_, full.begin)) {
      in_window.push_back(full);
      continue;
    }
    for (uint32_t block = full.begin; block < full.end; ++block) {
      Block& held = *full.list->blocks[block];
      if (held.sealed) continue;
      keys.push_back(held.key);
      const Hash128* name = full.content ? full.content->block(block) : nullptr;
      if (name) std::copy(name->begin(), name->end(), keys.back().hash);
      leases.push_back(access_.as_storage_counts(held.lease));
      places.push_back(&full.list->leases[block]);
      blocks.push_back(&held);
    }
  }
  if (!in_window.empty()) window_->seal(in_window);
  if (keys.empty()) return;
  access_.storage.seal(keys, leases.data());
  bool usable = true;
  for (size_t i = 0; i < keys.size(); ++i) {
    kvasir_lease& lease = leases[i];
    if (lease.format >= access_.n_formats) {
      usable = false;
      continue;
    }
    lease.format += access_.first_format;
    lease.pos_begin = keys[i].block * access_.block_size;
    lease.n_tokens = access_.block_size;
    blocks[i]->lease = lease;
    blocks[i]->key = keys[i];
    blocks[i]->key.handle = lease.handle;
    blocks[i]->sealed = true;
    *places[i] = lease;
  }
  if (!usable)
    throw PluginError(access_.storage.id(), "seal", KVASIR_ERR_INTERNAL,
                      "unknown format in a lease");
}

void BlockStore::leave_window(std::span<const Leaving> all) {
  if (!window_) return;
  struct Run {
    LayerState* layer;
    uint32_t layer_index;
    uint32_t begin, end;  // blocks
    BlockList fresh{};
  };
  std::deque<Run> runs;
  std::vector<ListNeeds> needs;
  for (const auto& [layer, layer_index, end] : all) {
    std::vector<uint32_t> blocks;
    for (uint32_t block = layer->context_blocks; block < end; ++block) {
      if (!layer->is_in(*window_, block)) continue;
      if (blocks.empty() || blocks.back() + 1 != block)
        runs.push_back({layer, layer_index, block, block});
      runs.back().end = block + 1;
      blocks.push_back(block);
    }
    needs.push_back(needs_of(*layer, blocks));
  }
  make_resident(needs);
  std::vector<NewBlocks> fresh;
  std::vector<Full> full;
  for (Run& run : runs) {
    fresh.push_back({&run.fresh, run.layer_index, run.begin, run.end});
    full.push_back({&run.fresh, run.begin, run.end});
  }
  create(fresh);
  for (Run& run : runs)
    for (uint32_t block = run.begin; block < run.end; ++block) {
      copy_tokens(run.layer->leases[block], run.fresh.leases[block], access_.block_size);
      set_tokens(run.fresh, block, access_.block_size);
    }
  seal(full);
  const LetGoTogether together(*this);
  for (Run& run : runs)
    for (uint32_t block = run.begin; block < run.end; ++block)
      replace(*run.layer, block, run.fresh);
  for (const auto& [layer, layer_index, end] : all)
    layer->context_blocks = std::max(layer->context_blocks, end);
}

uint64_t BlockStore::make_resident(std::span<const ListNeeds> needs) {
  const uint64_t n_missed = window_ ? window_->make_resident(needs) : 0;
  return n_missed + residency_.make_resident(needs);
}

uint64_t BlockStore::make_resident(BlockList& list, std::span<const uint32_t> blocks) {
  const ListNeeds one[] = {needs_of(list, blocks)};
  return make_resident(one);
}

void BlockStore::make_all_resident(BlockList& list) {
  const ListNeeds one[] = {needs_all(list)};
  make_resident(one);
}

ListNeeds BlockStore::needs_of(BlockList& list, std::span<const uint32_t> blocks) const {
  ListNeeds needs{&list, {}};
  if (!moves()) return needs;
  needs.blocks.reserve(blocks.size());
  for (const uint32_t block : blocks) needs.blocks.push_back({block, {}});
  return needs;
}

ListNeeds BlockStore::needs_all(BlockList& list) const {
  std::vector<uint32_t> all(moves() ? list.blocks.size() : 0);
  std::iota(all.begin(), all.end(), 0);
  return needs_of(list, all);
}

void BlockStore::prefetch(std::span<const ListNeeds> needs) {
  if (window_) window_->prefetch(needs);
  residency_.prefetch(needs);
}

void BlockStore::tell_heat(std::span<const Heat> all) {
  std::vector<kvasir_block_key> keys;
  std::vector<float> values;
  for (const Heat& heat : all) {
    const Block* block = heat.list->blocks[heat.block].get();
    if (!block || !block->sealed || block->store != this) continue;
    keys.push_back(block->key);
    values.push_back(heat.value);
  }
  if (!keys.empty()) access_.storage.heat(keys, values);
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

void BlockStore::drop(Block& block) noexcept {
  if (block.lease.lease) residency_.release({block.lease.lease});
  if (n_keep_ > 0)
    dropped_keys_.push_back(block.key);
  else
    drop_all({block.key});
}

void BlockStore::keep_let_go(int n) noexcept {
  if (window_) window_->keep_let_go(n);
  residency_.keep_released(n);
  n_keep_ += n;
  if (n_keep_ == 0 && !dropped_keys_.empty()) drop_all(std::exchange(dropped_keys_, {}));
}

void BlockStore::drop_all(const std::vector<kvasir_block_key>& keys) noexcept {
  try {
    access_.storage.drop(keys, KVASIR_DROP_FORGET);
  } catch (const PluginError& e) {
    services_.log(KVASIR_LOG_ERROR, access_.storage.id(), e.text());
  } catch (const std::exception& e) {
    services_.log(KVASIR_LOG_ERROR, access_.storage.id(), e.what());
  }
}

}  // namespace kvasir
