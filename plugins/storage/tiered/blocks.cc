// What the storage's calls do to blocks; see blocks.h. What moves them is in block_moves.cc.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/blocks.h"

#include <filesystem>

#include "plugins/storage/tiered/key_tokens.h"
#include "plugins/storage/tiered/store.h"

namespace kvasir::tiered {

Blocks::Blocks(const sdk::Host& host, const sdk::Options& options, Store* store)
    : host_(host),
      store_(store),
      types_(options),
      cached_blocks_(options.u32("cached_blocks")),
      victim_(static_cast<Victim>(options.choice("cache_strategy"))),
      gap_bytes_(options.u32("gap_bytes")),
      file_options_(options),
      folder_(options.delivered("folder") ? options.path("folder")
                                          : std::filesystem::temp_directory_path().string()) {}

sdk::KvLayout Blocks::layout(const kvasir_geometry& geometry) const {
  return sdk::kv_layout(geometry, types_, geometry.n_kv_heads);
}

void Blocks::bind(const kvasir_geometry& geometry) {
  table_.bind(geometry);
  all_heads_ = layout(geometry);
  one_head_ = sdk::kv_layout(geometry, types_, 1);
  block_size_ = geometry.block_size;
  file_.emplace(folder_, file_options_.direct);
  const uint64_t alignment = file_->alignment() == 1 ? 1 : BlockFile::kPage;
  const auto records_of_heads = [&](const sdk::KvLayout& layout, uint32_t n_heads) {
    return Records(layout, n_heads, block_size_, file_options_.read_bytes, alignment);
  };
  all_records_ = records_of_heads(all_heads_, geometry.n_kv_heads);
  one_records_ = records_of_heads(one_head_, 1);
  layers_.assign(geometry.n_layers, Layer{Pool(victim_)});
}

uint64_t Blocks::piece_bytes() const {
  return std::max(all_records_.piece_bytes(), one_records_.piece_bytes());
}

void Blocks::acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
  const std::lock_guard lock(mutex_);
  sdk::acquire_all(*this, "tiered", keys, mode, out);
}

void Blocks::release(std::span<const uint64_t> leases) {
  const std::lock_guard lock(mutex_);
  sdk::release_all(*this, host_, leases);
  for (uint32_t layer = 0; layer < layers_.size(); ++layer)
    if (std::exchange(layers_[layer].released, false)) end_step(layer);
}

// Equal blocks are kept once, unless the one that is there has left memory.
std::vector<uint64_t> Blocks::seal(const sdk::BlockKeys& keys, const sdk::Leases& leases,
                                   Kept& kept) {
  const std::lock_guard lock(mutex_);
  const auto is_resident = [&](uint64_t twin) { return table_.block(twin)->bytes.memory.whole(); };
  std::vector<bool> is_named(keys.size());  // by content: it gets another name
  for (uint64_t i = 0; store_ && store_->is_named() && i < keys.size(); ++i) {
    const Block* block = table_.block(leases[i].handle);
    is_named[i] =
        block && keys[i].kv_head == KVASIR_ALL_HEADS && !(block->name == sdk::name_of(keys[i]));
  }
  const auto given_up = table_.seal(keys, leases, is_resident);
  std::vector<uint64_t> handles;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    Block& block = *table_.block(leases[i].handle);
    if (std::exchange(block.bytes.sealed, true)) {  // shared
      stay(block);
      point(leases[i], keys[i], leases[i].handle);
      continue;
    }
    handles.push_back(leases[i].handle);
    if (is_named[i]) kept.emplace_back(keys[i], block.bytes.memory.memory());
    came(block);
  }
  for (const uint64_t handle : given_up) remove(handle);
  return handles;
}

void Blocks::drop(const sdk::BlockKeys& keys, uint32_t mode) {
  const std::lock_guard lock(mutex_);
  sdk::drop_all(*this, table_, "tiered", keys, mode);
}

std::vector<Load> Blocks::loads_of(const sdk::BlockKeys& keys) {
  const std::lock_guard lock(mutex_);
  std::vector<Load> loads;
  for (const kvasir_block_key& key : keys) {
    const uint64_t handle = table_.find("prefetch", key, true);
    loads.push_back({handle, handle ? needed_of(key, *table_.block(handle)) : TokenSet()});
  }
  return loads;
}

std::vector<Load> Blocks::missing(const sdk::BlockKeys& keys, std::vector<bool>& was_missing) {
  const std::lock_guard lock(mutex_);
  was_missing.assign(keys.size(), false);
  std::vector<Load> loads;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const uint64_t handle = table_.find("acquire", keys[i], true);
    if (handle == 0) continue;
    const Block& block = *table_.block(handle);
    if (block.bytes.memory.whole() || block.bytes.lost) continue;
    TokenSet needed = needed_of(keys[i], block);
    const uint32_t n_missing = block.bytes.memory.missing(needed).count();
    if (n_missing == 0) continue;
    tokens_missed_ += n_missing;
    was_missing[i] = true;
    loads.push_back({handle, std::move(needed)});
  }
  return loads;
}

bool Blocks::is_named(const kvasir_block_key& key) {
  const std::lock_guard lock(mutex_);
  return table_.find("restore", key, false) != 0;
}

bool Blocks::hold(kvasir_block_key& key) {
  const std::lock_guard lock(mutex_);
  key.handle = table_.find("restore", key, false);
  Block* block = key.handle ? table_.block(key.handle) : nullptr;
  if (!block || !block->bytes.sealed || block->bytes.lost) return false;
  ++block->n_holders;
  return true;
}

bool Blocks::lease_held(const kvasir_block_key& key, kvasir_lease& out) {
  {
    const std::lock_guard lock(mutex_);
    if (table_.block(key.handle)->bytes.memory.whole()) {
      out = lease(key, key.handle, false);
      return true;
    }
  }
  let_go(key);
  return false;
}

void Blocks::let_go(const kvasir_block_key& key) {
  const std::lock_guard lock(mutex_);
  if (table_.drop(key) != 0) remove(key.handle);
}

uint64_t Blocks::add(const kvasir_block_key& key, Memory memory, kvasir_lease& out) {
  const std::lock_guard lock(mutex_);
  Bytes bytes;
  bytes.memory = BlockMemory(std::move(memory));
  bytes.sealed = true;
  const uint64_t handle = table_.add(key, std::move(bytes));
  Block& block = *table_.block(handle);
  block.sealed = true;
  came(block);
  out = lease(key, handle, false);
  return handle;
}

kvasir_lease Blocks::no_lease(const kvasir_block_key& key, uint32_t state) const {
  return table_.no_lease(key, state);
}

std::string Blocks::where(const char* function, const kvasir_block_key& key) const {
  return table_.where(function, key);
}

std::vector<kvasir_tier_count> Blocks::tiers() {
  const std::lock_guard lock(mutex_);
  return {{"memory", memory_read_, memory_written_, tokens_leased_, 0, 0, 0},
          {"file", file_->bytes_read(), file_->bytes_written(), tokens_missed_, 0, 0, 0}};
}

void Blocks::tell_use() {
  const std::lock_guard lock(mutex_);
  if (n_read_ == 0) return;
  host_.log(KVASIR_LOG_INFO, std::to_string(n_loaded_) + " blocks (" +
                                 std::to_string(file_->bytes_read() / 1000000) +
                                 " MB) read back, whole or in part, for " +
                                 std::to_string(n_read_) + " leases, a file of " +
                                 std::to_string(file_->bytes() / 1000000) + " MB");
}

kvasir_lease Blocks::read_lease(const kvasir_block_key& key) {
  const uint64_t handle = table_.find("acquire", key, true);
  if (handle == 0) return no_lease(key, KVASIR_LEASE_FAILED);
  const Block& block = *table_.block(handle);
  if (block.bytes.lost) return no_lease(key, KVASIR_LEASE_FAILED);
  if (block.bytes.memory.whole()) {
    ++n_read_;
    tokens_leased_ += n_needed(key, block.name.kv_head != key.kv_head, records_of(block));
    return lease(key, handle, false);
  }
  const TokenSet needed = needed_of(key, block);
  if (const uint32_t n_missing = block.bytes.memory.missing(needed).count(); n_missing != 0) {
    tokens_missed_ += n_missing;
    return no_lease(key, KVASIR_LEASE_NOT_RESIDENT);
  }
  ++n_read_;
  tokens_leased_ += needed.count();
  kvasir_lease out = lease(key, handle, false);
  if (!block.bytes.memory.missing(covered_by(key, block)).empty()) out.state = KVASIR_LEASE_PARTIAL;
  return out;
}

kvasir_lease Blocks::write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
  uint64_t handle = table_.find_for_writing(key);
  if (handle == 0) {
    const sdk::KvLayout& layout = key.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
    Bytes bytes;
    bytes.memory = BlockMemory(allocate(layout.block_bytes()));
    created.push_back(handle = table_.add(key, std::move(bytes)));
  } else {
    reopen(key, handle);
  }
  return lease(key, handle, true);
}

bool Blocks::give_back(uint64_t lease) noexcept {
  const uint64_t handle = table_.end_lease(lease);
  if (handle == 0) return false;
  layers_[table_.block(handle)->name.layer].released = true;
  may_leave(handle);
  return true;
}

void Blocks::remove(uint64_t handle) noexcept {
  Block& block = *table_.block(handle);
  stay(block);
  if (block.bytes.sealed) layers_[block.name.layer].resident_bytes -= memory_bytes(block);
  if (!block.bytes.saving) file_->give_back(block.bytes.saved);
  table_.remove(handle);
}

const sdk::KvLayout& Blocks::layout_of(const Block& block) const {
  return block.name.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
}

const Records& Blocks::records_of(const Block& block) const {
  return block.name.kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
}

uint64_t Blocks::memory_bytes(const Block& block) const {
  return block.bytes.memory.bytes(layout_of(block).block_bytes());
}

TokenSet Blocks::covered_by(const kvasir_block_key& key, const Block& block) const {
  return tiered::covered_by(key, block.name.kv_head != key.kv_head, records_of(block));
}

TokenSet Blocks::needed_of(const kvasir_block_key& key, const Block& block) const {
  return needed_by(key, block.name.kv_head != key.kv_head, records_of(block));
}

kvasir_lease Blocks::lease(const kvasir_block_key& key, uint64_t handle, bool write) {
  kvasir_lease out = table_.lease(key, handle, write);
  Block& block = *table_.block(handle);
  stay(block);
  layers_[block.name.layer].pool.used(block.bytes.use, block.n_leases == 1);
  point(out, key, handle);
  return out;
}

void Blocks::point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
  Block& block = *table_.block(handle);
  const sdk::KvLayout& layout = layout_of(block);
  const uint64_t skip = table_.first_head(key, handle);
  lease.k = block.bytes.memory.data() + skip * layout.format.k_head_stride;
  lease.v = block.bytes.memory.data() + layout.k_bytes + skip * layout.format.v_head_stride;
}

void Blocks::came(Block& block) {
  layers_[block.name.layer].pool.came(block.bytes.use);
  layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
}

}  // namespace kvasir::tiered
