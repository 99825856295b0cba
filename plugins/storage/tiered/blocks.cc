// What the storage's calls do to blocks; see blocks.h. What moves them is in block_moves.cc and
// block_saves.cc.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/blocks.h"

#include <kvasir/ext/draft/block_heat.h>

#include <algorithm>
#include <string>

#include "plugins/shared/layers.h"
#include "plugins/storage/tiered/key_tokens.h"
#include "plugins/storage/tiered/store.h"

namespace kvasir::tiered {

Blocks::Blocks(const sdk::Host& host, const sdk::Options& options, Store* store)
    : host_(host),
      store_(store),
      types_(options),
      cached_blocks_(options.u32("cached_blocks")),
      keep_dense_layers_(options.boolean("keep_dense_layers")),
      victim_(static_cast<Victim>(options.choice("cache_strategy"))),
      score_decay_(options.f64("score_decay")),
      gap_bytes_(options.u32("gap_bytes")),
      file_options_(options),
      places_(file_places(options)) {}

sdk::KvLayout Blocks::layout(const kvasir_geometry& geometry) const {
  return sdk::kv_layout(geometry, types_, geometry.n_kv_heads);
}

bool Blocks::keeps_all(const kvasir_geometry& geometry, uint32_t layer) const {
  const bool slides = geometry.sliding_windows && geometry.sliding_windows[layer] != 0;
  return keep_dense_layers_ && sdk::is_dense_layer(geometry, layer) && !slides;
}

void Blocks::bind(const kvasir_geometry& geometry) {
  table_.bind(geometry);
  all_heads_ = layout(geometry);
  one_head_ = sdk::kv_layout(geometry, types_, 1);
  spare_.keep_at_most(spare_bytes(sdk::blocks_per_sequence(geometry) * geometry.max_sequences *
                                  all_heads_.block_bytes()));
  block_size_ = geometry.block_size;
  uint64_t alignment = 1;
  for (const FilePlace& place : places_) {
    files_.add(std::make_unique<BlockFile>(place.folder, place.limit_bytes, file_options_.direct));
    if (files_[files_.size() - 1].alignment() != 1) alignment = BlockFile::kPage;
  }
  const auto records_of_heads = [&](const sdk::KvLayout& layout, uint32_t n_heads) {
    return Records(layout, n_heads, block_size_, file_options_.read_bytes, alignment);
  };
  all_records_ = records_of_heads(all_heads_, geometry.n_kv_heads);
  one_records_ = records_of_heads(one_head_, 1);
  const sdk::HeadPlacement placement(host_, geometry.n_kv_heads);
  all_places_ = BlockPlaces(placement, all_heads_, 0, geometry.n_kv_heads);
  one_places_.clear();
  for (uint32_t head = 0; head < geometry.n_kv_heads; ++head)
    one_places_.emplace_back(placement, one_head_, head, 1);
  layers_.assign(geometry.n_layers, Layer{Pool(victim_, score_decay_)});
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer)
    layers_[layer].keeps_all = keeps_all(geometry, layer);
  file_pools_.assign(places_.size() - 1, Pool(victim_, score_decay_));
  tokens_missed_.assign(places_.size(), 0);
  bool is_limited = true;
  for (const FilePlace& place : places_) {
    const uint64_t n = place.limit_bytes / all_records_.block_bytes();
    limit_bytes_ += n * all_records_.block_bytes();
    is_limited &= place.limit_bytes != 0;
    if (place.limit_bytes != 0 && n == 0)
      sdk::fail_invalid("tiered: " + place.limit_key + " = " + std::to_string(place.limit_bytes) +
                        " is less than one block of this model, which takes " +
                        std::to_string(all_records_.block_bytes()) + " bytes in a file");
  }
  if (!is_limited) limit_bytes_ = 0;
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

uint32_t Blocks::wants_heat() const {
  if (victim_ == Victim::kLruS) return KVASIR_HEAT_MASS;
  return victim_ == Victim::kSelector ? KVASIR_HEAT_SCORE : KVASIR_HEAT_NONE;
}

void Blocks::heat(const sdk::BlockKeys& keys, std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  uint64_t i = 0;
  for (const kvasir_block_key& key : keys) {
    const float value = values[i++];
    const uint64_t handle = table_.find("heat", key, true);
    if (handle == 0) continue;
    Block& block = *table_.block(handle);
    Layer& layer = layers_[block.name.layer];
    if (i == 1) ++layer.n_told;
    layer.pool.told(block.bytes.use, handle, value, layer.n_told);
    if (block.bytes.saved.valid() && block.bytes.saved.file < file_pools_.size())
      file_pools_[block.bytes.saved.file].told(block.bytes.file_use, handle, value, layer.n_told);
  }
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

std::vector<Load> Blocks::missing(const sdk::BlockKeys& keys, std::vector<uint32_t>& tier) {
  const std::lock_guard lock(mutex_);
  tier.assign(keys.size(), 0);
  std::vector<Load> loads;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const uint64_t handle = table_.find("acquire", keys[i], true);
    if (handle == 0) continue;
    const Block& block = *table_.block(handle);
    if (block.bytes.memory.whole() || block.bytes.lost) continue;
    TokenSet needed = needed_of(keys[i], block);
    const uint32_t n_missing = block.bytes.memory.missing(needed).count();
    if (n_missing == 0) continue;
    tokens_missed_[block.bytes.saved.file] += n_missing;
    tier[i] = 1 + block.bytes.saved.file;
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
  check_space(key);
  place(key.kv_head, memory.get(), sdk::Touched::kYes);
  bytes.memory = BlockMemory(std::move(memory));
  bytes.sealed = true;
  const uint64_t handle = table_.add(key, std::move(bytes));
  Block& block = *table_.block(handle);
  promised_bytes_ += records_of(block).block_bytes();
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
  static constexpr const char* kNames[kMostFiles] = {"file", "file_2", "file_3"};
  const std::lock_guard lock(mutex_);
  std::vector<kvasir_tier_count> out = {
      {"memory", memory_read_, memory_written_, tokens_leased_, 0, 0, 0}};
  for (uint32_t file = 0; file < files_.size(); ++file)
    out.push_back({kNames[file], files_[file].bytes_read(), files_[file].bytes_written(),
                   tokens_missed_[file], 0, 0, 0});
  return out;
}

void Blocks::tell_use() {
  const std::lock_guard lock(mutex_);
  if (n_read_ == 0) return;
  uint64_t bytes_read = 0;
  std::string sizes;
  for (uint32_t file = 0; file < files_.size(); ++file) {
    bytes_read += files_[file].bytes_read();
    sizes += (file == 0 ? "" : " and ") + std::string("a file of ") +
             std::to_string(files_[file].bytes() / 1000000) + " MB";
  }
  host_.log(KVASIR_LOG_INFO, std::to_string(n_loaded_) + " blocks (" +
                                 std::to_string(bytes_read / 1000000) +
                                 " MB) read back, whole or in part, for " +
                                 std::to_string(n_read_) + " leases, " + sizes);
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
    tokens_missed_[block.bytes.saved.file] += n_missing;
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
    check_space(key);
    Bytes bytes;
    bytes.memory = BlockMemory(memory_for_all(key.kv_head));
    created.push_back(handle = table_.add(key, std::move(bytes)));
    promised_bytes_ += records_of(*table_.block(handle)).block_bytes();
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
  if (!block.bytes.saving) {
    unsettle(block);
    files_.give_back(block.bytes.saved);
  }
  free_left(handle);
  promised_bytes_ -= records_of(block).block_bytes();
  table_.remove(handle);
}

// Files hold every full block, so that what they may take together is what there may be of all.
void Blocks::check_space(const kvasir_block_key& key) const {
  const Records& records = key.kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
  if (limit_bytes_ == 0 || promised_bytes_ + records.block_bytes() <= limit_bytes_) return;
  std::string keys;
  for (const FilePlace& place : places_) keys += (keys.empty() ? "" : " and ") + place.limit_key;
  throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY,
                   where("acquire", key) + "the files are full: blocks take " +
                       std::to_string(promised_bytes_) + " of " + std::to_string(limit_bytes_) +
                       " bytes; raise " + keys + ", or keep a shorter context");
}

const Records& Blocks::records_of(const Block& block) const {
  return block.name.kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
}

Memory Blocks::memory_for_all(uint32_t kv_head) {
  SpareMemory::Taken taken = spare_.take(layout_of(kv_head).block_bytes());
  place(kv_head, taken.memory.get(), taken.is_new ? sdk::Touched::kNo : sdk::Touched::kYes);
  return std::move(taken.memory);
}

// New: pages that no token needs take no memory.
Memory Blocks::memory_for_some(uint32_t kv_head) {
  Memory memory = allocate(layout_of(kv_head).block_bytes());
  place(kv_head, memory.get(), sdk::Touched::kNo);
  return memory;
}

// A wish: refused, the pages go where they are first touched.
void Blocks::place(uint32_t kv_head, std::byte* memory, sdk::Touched touched) {
  const std::string refusal = places_of(kv_head).place(memory, touched);
  if (!refusal.empty() && !std::exchange(refusal_told_, true)) sdk::tell_refusal(host_, refusal);
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
  used_in_file(handle, block.n_leases == 1);
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
