// Storage in two tiers: the blocks used last stay in main memory, the others lie in a file and come
// back when a step asks for them, or when a selector foresees that it will: whole, or the tokens
// that are needed.
// SPDX-License-Identifier: Apache-2.0

#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/store.h>
#include <kvasir/sdk/tier_counters.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/storage/tiered/block_file.h"
#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/key_tokens.h"
#include "plugins/storage/tiered/move.h"
#include "plugins/storage/tiered/options.h"
#include "plugins/storage/tiered/pool.h"
#include "plugins/storage/tiered/store.h"
#include "plugins/storage/tiered/transfers.h"

namespace {
using namespace kvasir;
using tiered::BlockFile;
using tiered::BlockMemory;
using tiered::Extent;
using tiered::Load;
using tiered::Reading;
using tiered::Records;
using tiered::Store;
using tiered::TokenSet;
using tiered::Transfers;
using tiered::Writing;

// Of full blocks that are not in the file yet.
constexpr uint64_t kMostUnsavedBytes = uint64_t{8} << 20;

class Tiered : private Transfers::Work {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_STORAGE,
                     .id = "kvasir.tiered",
                     .version = "0.1.0",
                     .name = "Tiered",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps the blocks used last in memory, the others in a file.",
                     .options = tiered::kOptions,
                     .caps = KVASIR_CAP_OWN_THREADS,
                     .provides = KVASIR_PROVIDE_FETCH,
                     .dtypes = sdk::kElementTypes});

  Tiered(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        types_(options),
        cached_blocks_(options.u32("cached_blocks")),
        victim_(static_cast<tiered::Victim>(options.choice("cache_strategy"))),
        gap_bytes_(options.u32("gap_bytes")),
        reads_ahead_(options.boolean("read_ahead")),
        file_options_(options),
        folder_(options.delivered("folder") ? options.path("folder")
                                            : std::filesystem::temp_directory_path().string()),
        transfers_(*this, completion_of(host)) {
    if (options.delivered("store"))
      store_.emplace(tiered::open_backend(options.path("store"), options.bytes("store_limit_bytes"),
                                          options.set_by_user("store_limit_bytes"), host_),
                     host_);
  }

  ~Tiered() {
    const std::lock_guard lock(mutex_);
    if (n_read_ != 0) tell_use();
  }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    out.n_tiers = 2;
    out.block_bytes = sdk::kv_layout(geometry, types_, geometry.n_kv_heads).block_bytes();
    out.resident_bytes =
        std::max<uint64_t>(out.block_bytes * cached_blocks_, 1) * geometry.n_layers;
    // What is on its way, and the tables.
    out.overhead_bytes = file_options_.n_buffers() * file_options_.read_bytes + kMostUnsavedBytes;
    if (store_) out.overhead_bytes += tiered::StoreWriter::kMostBytes;
    out.overhead_bytes += sdk::blocks_per_sequence(geometry) * geometry.n_layers *
                          geometry.max_sequences * sdk::BlockTable<Bytes>::bytes_per_block();
  }

  void bind(const kvasir_geometry& geometry) {
    table_.bind(geometry);
    all_heads_ = sdk::kv_layout(geometry, types_, geometry.n_kv_heads);
    one_head_ = sdk::kv_layout(geometry, types_, 1);
    block_size_ = geometry.block_size;
    file_.emplace(folder_, file_options_.direct);
    const uint64_t alignment = file_->alignment() == 1 ? 1 : BlockFile::kPage;
    const auto records_of_heads = [&](const sdk::KvLayout& layout, uint32_t n_heads) {
      return Records(layout, n_heads, block_size_, file_options_.read_bytes, alignment);
    };
    all_records_ = records_of_heads(all_heads_, geometry.n_kv_heads);
    one_records_ = records_of_heads(one_head_, 1);
    transfers_.set_io(make_file_io(*file_, file_options_, piece_bytes(), host_));
    layers_.assign(geometry.n_layers, Layer{tiered::Pool(victim_)});
    if (store_) store_->bind(geometry, all_heads_);
  }

  std::vector<kvasir_tier_count> tiers() {
    const std::lock_guard lock(mutex_);
    const tiered::FlowCounts flow = transfers_.flow();
    std::vector<kvasir_tier_count> out = {
        {"memory", memory_read_, memory_written_, tokens_leased_, 0, 0, 0},
        {"file", file_->bytes_read(), file_->bytes_written(), tokens_missed_, flow.n_reads,
         flow.busy_nanos, flow.read_nanos}};
    if (store_)
      out.push_back({"store", store_->backend().bytes_read(), store_->backend().bytes_written(),
                     store_->tokens_found(), 0, 0, 0});
    return out;
  }

  const void* get_extension(const char* id) const {
    if (std::string_view(id) == KVASIR_EXT_STORE)
      return store_ ? sdk::store_table<Tiered>() : nullptr;
    return sdk::tier_counters_if_asked<Tiered>(id);
  }

  // kvasir.store/1, which is offered with a store only.
  void name_run(const tiered::Hash& run, const std::string& about) { store_->name_run(run, about); }
  void restore(const sdk::BlockKeys& keys, const sdk::Leases& out) {
    transfers_.start();
    for (uint64_t i = 0; i < keys.size(); ++i)
      out[i] = table_.no_lease(keys[i], KVASIR_LEASE_FAILED);
    try {
      uint64_t n = 0;
      while (n < keys.size() && (lease_held(keys[n], out[n]) ? ++n : lease_stored(keys, n, out)))
        continue;
    } catch (const std::exception&) {  // no memory, or a file that cannot be read: the others FAIL
    }
  }
  std::vector<kvasir_store_run> list() const { return store_->backend().list(); }
  kvasir_store_result verify(const kvasir_store_filter& filter, const sdk::BadRecord& bad) const {
    return store_->backend().verify(filter, bad);
  }
  kvasir_store_result prune(const kvasir_store_filter& filter) const {
    return store_->backend().prune(filter);
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("tiered", all_heads_.format, out, capacity, n_formats);
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const bool fetches = mode == KVASIR_ACQUIRE_FETCH;
    const std::vector<bool> was_missing = fetches ? fetch(keys) : std::vector<bool>();
    const std::lock_guard lock(mutex_);
    sdk::acquire_all(*this, "tiered", keys, fetches ? KVASIR_ACQUIRE_READ : mode, out);
    for (uint64_t i = 0; i < was_missing.size(); ++i) out[i].tier = was_missing[i] ? 1 : 0;
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    sdk::release_all(*this, host_, leases);
    for (uint32_t layer = 0; layer < layers_.size(); ++layer)
      if (std::exchange(layers_[layer].released, false)) end_step(layer);
  }

  // A full block does not change any more: it goes to the file, and may then leave memory. Equal
  // blocks are kept once, unless the one that is there has left memory.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    transfers_.start();
    std::vector<std::pair<kvasir_block_key, tiered::Memory>> kept;
    {
      const std::lock_guard lock(mutex_);
      seal_all(keys, leases, kept);
    }
    for (auto& [key, memory] : kept) store_->keep(key, std::move(memory));
    wait_for_saves();
  }

  // UNREF and FORGET both free the bytes of both tiers: no block outlives its holder.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    const std::lock_guard lock(mutex_);
    sdk::drop_all(*this, table_, "tiered", keys, mode);
  }

  void prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint& hint, uint64_t ticket,
                uint32_t& accepted) {
    transfers_.start();
    std::vector<Load> loads;
    {
      const std::lock_guard lock(mutex_);
      for (const kvasir_block_key& key : keys) {
        const uint64_t handle = table_.find("prefetch", key, true);
        loads.push_back({handle, handle ? needed_of(key, *table_.block(handle)) : TokenSet()});
      }
    }
    if (loads.empty() || (hint.priority == 0 && !reads_ahead_)) return;
    const auto n = static_cast<uint32_t>(loads.size());
    transfers_.load(ticket, std::move(loads), hint.priority != 0);
    accepted = n;
  }
  void cancel(uint64_t ticket) { transfers_.cancel(ticket); }
  void drain(uint64_t deadline_ms) { transfers_.drain(deadline_ms); }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    const Block& block = *table_.block(handle);
    if (block.bytes.lost) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    if (block.bytes.memory.whole()) {
      ++n_read_;
      tokens_leased_ += tiered::n_needed(key, block.name.kv_head != key.kv_head, records_of(block));
      return lease(key, handle, false);
    }
    const TokenSet needed = needed_of(key, block);
    if (const uint32_t n_missing = block.bytes.memory.missing(needed).count(); n_missing != 0) {
      tokens_missed_ += n_missing;
      return table_.no_lease(key, KVASIR_LEASE_NOT_RESIDENT);
    }
    ++n_read_;
    tokens_leased_ += needed.count();
    kvasir_lease out = lease(key, handle, false);
    if (!block.bytes.memory.missing(covered_by(key, block)).empty())
      out.state = KVASIR_LEASE_PARTIAL;
    return out;
  }
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = table_.find_for_writing(key);
    if (handle == 0) {
      const sdk::KvLayout& layout = key.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
      Bytes bytes;
      bytes.memory = BlockMemory(tiered::allocate(layout.block_bytes()));
      created.push_back(handle = table_.add(key, std::move(bytes)));
    } else {
      reopen(key, handle);
    }
    return lease(key, handle, true);
  }
  bool give_back(uint64_t lease) noexcept {
    const uint64_t handle = table_.end_lease(lease);
    if (handle == 0) return false;
    layers_[table_.block(handle)->name.layer].released = true;
    may_leave(handle);
    return true;
  }
  void remove(uint64_t handle) noexcept {
    Block& block = *table_.block(handle);
    stay(block);
    if (block.bytes.sealed) layers_[block.name.layer].resident_bytes -= memory_bytes(block);
    if (!block.bytes.saving) file_->give_back(block.bytes.saved);
    table_.remove(handle);
  }

 private:
  struct Bytes {
    BlockMemory memory;
    Extent saved;  // valid: the file has it
    tiered::PoolUse use;
    bool sealed = false;   // does not change
    bool saving = false;   // on its way to the file
    bool loading = false;  // on its way from there
    bool lost = false;     // could not be read back
  };
  using Block = sdk::BlockTable<Bytes>::Block;
  struct Layer {
    tiered::Pool pool;
    uint64_t resident_bytes = 0;    // of sealed blocks in memory
    std::vector<uint64_t> fresh{};  // read back for a step that has not ended
    bool released = false;
  };

  static const kvasir_completion* completion_of(const sdk::Host& host) {
    if (host.completion()) return host.completion();
    throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                     std::string("tiered: the host does not offer ") + KVASIR_EXT_COMPLETION);
  }

  const sdk::KvLayout& layout_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
  }
  const Records& records_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
  }

  TokenSet covered_by(const kvasir_block_key& key, const Block& block) const {
    return tiered::covered_by(key, block.name.kv_head != key.kv_head, records_of(block));
  }
  TokenSet needed_of(const kvasir_block_key& key, const Block& block) const {
    return tiered::needed_by(key, block.name.kv_head != key.kv_head, records_of(block));
  }
  void wait_for_saves() { transfers_.wait_for_saves(kMostUnsavedBytes / all_heads_.block_bytes()); }
  uint64_t memory_bytes(const Block& block) const {
    return block.bytes.memory.bytes(layout_of(block).block_bytes());
  }

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = table_.lease(key, handle, write);
    Block& block = *table_.block(handle);
    stay(block);
    layers_[block.name.layer].pool.used(block.bytes.use, block.n_leases == 1);
    point(out, key, handle);
    return out;
  }
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
    Block& block = *table_.block(handle);
    const sdk::KvLayout& layout = layout_of(block);
    const uint64_t skip = table_.first_head(key, handle);
    lease.k = block.bytes.memory.data() + skip * layout.format.k_head_stride;
    lease.v = block.bytes.memory.data() + layout.k_bytes + skip * layout.format.v_head_stride;
  }

  // Under the lock. `kept`: what is to go to the store.
  void seal_all(const sdk::BlockKeys& keys, const sdk::Leases& leases,
                std::vector<std::pair<kvasir_block_key, tiered::Memory>>& kept) {
    const auto is_resident = [&](uint64_t twin) {
      return table_.block(twin)->bytes.memory.whole();
    };
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
      layers_[block.name.layer].pool.came(block.bytes.use);
      layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
    }
    for (const uint64_t handle : given_up) remove(handle);
    transfers_.save(handles);
  }

  // Of a block that this process has. False, and no lease, when it has not.
  bool lease_held(kvasir_block_key key, kvasir_lease& out) {
    if (key.handle != 0 || key.kv_head != KVASIR_ALL_HEADS)
      sdk::fail_invalid(table_.where("restore", key) + "blocks of all heads, without a handle");
    {
      const std::lock_guard lock(mutex_);
      key.handle = table_.find("restore", key, false);
      Block* block = key.handle ? table_.block(key.handle) : nullptr;
      if (!block || !block->bytes.sealed || block->bytes.lost) return false;
      ++block->n_holders;
    }
    kvasir_block_key one = key;
    try {
      fetch(sdk::BlockKeys(&one, 1, sizeof one));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (table_.drop(key) != 0) remove(key.handle);
      throw;
    }
    const std::lock_guard lock(mutex_);
    if (table_.block(key.handle)->bytes.memory.whole()) {
      out = lease(key, key.handle, false);
      return true;
    }
    if (table_.drop(key) != 0) remove(key.handle);
    return false;
  }
  bool is_held(const kvasir_block_key& key) {
    const std::lock_guard lock(mutex_);
    return table_.find("restore", key, false) != 0;
  }
  // From keys[n] on, up to one that this process has: asked for together. Counts n up; 0 when the
  // store lacks one of them.
  uint64_t lease_stored(const sdk::BlockKeys& keys, uint64_t& n, const sdk::Leases& out) {
    std::vector<kvasir_block_key> wanted = {keys[n]};
    while (n + wanted.size() < keys.size() && !is_held(keys[n + wanted.size()]))
      wanted.push_back(keys[n + wanted.size()]);
    std::vector<tiered::Memory> found = store_->find(wanted);
    std::vector<uint64_t> handles;
    {
      const std::lock_guard lock(mutex_);
      for (tiered::Memory& memory : found)
        handles.push_back(add_stored(keys[n], std::move(memory), out[n])), ++n;
    }
    transfers_.save(handles);
    wait_for_saves();
    return found.size() == wanted.size() ? n : 0;
  }
  uint64_t add_stored(const kvasir_block_key& key, tiered::Memory memory, kvasir_lease& out) {
    Bytes bytes;
    bytes.memory = BlockMemory(std::move(memory));
    bytes.sealed = true;
    const uint64_t handle = table_.add(key, std::move(bytes));
    Block& block = *table_.block(handle);
    block.sealed = true;
    layers_[block.name.layer].pool.came(block.bytes.use);
    layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
    out = lease(key, handle, false);
    return handle;
  }

  // Brings in what `keys` need and waits for it. Returns which keys were not in memory.
  std::vector<bool> fetch(const sdk::BlockKeys& keys) {
    transfers_.start();
    std::vector<bool> was_missing(keys.size());
    std::vector<Load> loads;
    {
      const std::lock_guard lock(mutex_);
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
    }
    if (!loads.empty()) transfers_.load_now(std::move(loads));
    return was_missing;
  }

  // A sealed block is to be written again: it comes back, and what the file has is void.
  void reopen(const kvasir_block_key& key, uint64_t handle) {
    std::unique_lock held(mutex_, std::adopt_lock);  // acquire()'s, which gets it back
    moved_.wait(held, [&] {
      const Block* block = table_.block(handle);
      return !block || (!block->bytes.saving && !block->bytes.loading);
    });
    held.release();
    if (!table_.block(handle))
      sdk::fail_invalid(table_.where("acquire", key) + "the block was dropped meanwhile");
    Block& block = *table_.block(handle);
    if (!block.bytes.sealed) return;
    if (store_) store_->finish();  // it reads the memory that is to be written again
    stay(block);
    if (!block.bytes.memory.whole()) complete(key, block);
    layers_[block.name.layer].resident_bytes -= memory_bytes(block);
    file_->give_back(std::exchange(block.bytes.saved, {}));
    block.bytes.sealed = false;
  }
  void complete(const kvasir_block_key& key, Block& block) {
    const auto reading = reading_of(block, covered_by(key, block));
    if (block.bytes.lost) reading->fail("it was lost before");
    if (!reading->failed()) run_now(*reading, *tiered::make_plain_io(*file_, piece_bytes()));
    if (reading->failed())
      throw sdk::Error(KVASIR_ERR_IO, table_.where("acquire", key) +
                                          "the block could not be read back: " + reading->why());
    take(block, *reading);
  }

  void may_leave(uint64_t handle) noexcept {
    Block& block = *table_.block(handle);
    Bytes& bytes = block.bytes;
    if (block.n_leases != 0 || !bytes.saved.valid() || bytes.memory.empty() || bytes.use.is_idle ||
        bytes.loading)
      return;
    layers_[block.name.layer].pool.add_idle(bytes.use, handle);
  }
  void stay(Block& block) noexcept { layers_[block.name.layer].pool.remove_idle(block.bytes.use); }

  // What was read back for a layer stays until the step's leases on it end: asked for or foreseen,
  // it is not pushed out by what else the step needs. That may exceed the limit so long.
  void end_step(uint32_t layer) noexcept {
    std::erase_if(layers_[layer].fresh, [&](uint64_t handle) {
      const Block* block = table_.block(handle);
      if (block && block->bytes.loading) return false;  // it may leave with the next step
      if (block) may_leave(handle);
      return true;
    });
    trim(layer);
  }

  void trim(uint32_t layer_index) noexcept {
    Layer& layer = layers_[layer_index];
    const uint64_t limit = cached_blocks_ * all_heads_.block_bytes();
    while (layer.resident_bytes > limit) {
      const uint64_t handle = layer.pool.victim();
      if (handle == 0) return;
      Block& block = *table_.block(handle);
      stay(block);
      layer.resident_bytes -= memory_bytes(block);
      block.bytes.memory.clear();
    }
  }

  // What arrived is the block's.
  void take(Block& block, Reading& reading) {
    const uint64_t before = memory_bytes(block);
    const Records& records = reading.records();
    memory_written_ += reading.arrived().count() * records.data_bytes();
    block.bytes.memory.add(reading.take_memory(), std::move(reading.arrived()), records);
    layers_[block.name.layer].resident_bytes += memory_bytes(block) - before;
  }

  uint64_t piece_bytes() const {
    return std::max(all_records_.piece_bytes(), one_records_.piece_bytes());
  }
  std::unique_ptr<Reading> reading_of(const Block& block, TokenSet wanted) const {
    auto reading =
        std::make_unique<Reading>(block.bytes.saved, records_of(block), std::move(wanted),
                                  block.bytes.memory, gap_bytes_, file_->alignment());
    if (reading->lacks_memory())
      reading->set_memory(tiered::allocate(layout_of(block).block_bytes()));
    return reading;
  }

  Begun begin_load(const Load& wanted) override {
    const std::lock_guard lock(mutex_);
    Block* block = table_.block(wanted.handle);
    if (!block || block->bytes.lost) return {nullptr, KVASIR_ERR_IO};
    if (block->bytes.memory.missing(wanted.tokens).empty()) return {};
    if (block->bytes.loading) return {nullptr, KVASIR_AGAIN};
    auto reading = reading_of(*block, wanted.tokens);
    layers_[block->name.layer].fresh.push_back(wanted.handle);
    block->bytes.loading = true;  // and so it stays
    stay(*block);
    return {std::move(reading), KVASIR_OK};
  }

  kvasir_status end_load(uint64_t handle, Reading& reading) override {
    const std::lock_guard lock(mutex_);
    moved_.notify_all();
    Block* block = table_.block(handle);
    if (!block) return KVASIR_ERR_IO;  // dropped meanwhile
    block->bytes.loading = false;
    if (!reading.failed()) {
      take(*block, reading);
      layers_[block->name.layer].pool.came(block->bytes.use);
      ++n_loaded_;
      return KVASIR_OK;
    }
    block->bytes.lost = true;
    host_.log(KVASIR_LOG_WARN, "block " + std::to_string(block->name.block) + " of layer " +
                                   std::to_string(block->name.layer) +
                                   " could not be read back from the file in " + folder_ + ": " +
                                   reading.why() +
                                   "; check that disk, or set folder to another one");
    return KVASIR_ERR_IO;
  }

  std::unique_ptr<Writing> begin_save(uint64_t handle) override {
    const std::lock_guard lock(mutex_);
    Block* block = table_.block(handle);
    if (!block || !block->bytes.sealed || block->bytes.saving || block->bytes.saved.valid())
      return nullptr;
    const Records& records = records_of(*block);
    const Extent extent = file_->reserve(records.block_bytes());
    auto writing = std::make_unique<Writing>(extent, records, block->bytes.memory.memory());
    block->bytes.saving = true;
    return writing;
  }

  void end_save(uint64_t handle, Writing& writing) override {
    const std::lock_guard lock(mutex_);
    moved_.notify_all();
    Block* block = table_.block(handle);
    if (writing.failed() || !block) file_->give_back(writing.extent());
    if (block) block->bytes.saving = false;
    if (writing.failed()) {
      if (!std::exchange(full_told_, true))
        host_.log(KVASIR_LOG_WARN, "blocks stay in memory, beyond cached_blocks: the file in " +
                                       folder_ + " takes no more (" + writing.why() + ")");
    } else if (block) {
      block->bytes.saved = writing.extent();
      memory_read_ += writing.records().size() * writing.records().data_bytes();
      may_leave(handle);
      trim(block->name.layer);
    }
  }

  void tell_use() const {
    host_.log(KVASIR_LOG_INFO, std::to_string(n_loaded_) + " blocks (" +
                                   std::to_string(file_->bytes_read() / 1000000) +
                                   " MB) read back, whole or in part, for " +
                                   std::to_string(n_read_) + " leases, a file of " +
                                   std::to_string(file_->bytes() / 1000000) + " MB");
  }

  sdk::Host host_;
  sdk::KvTypes types_;
  uint32_t cached_blocks_;
  tiered::Victim victim_;
  uint32_t gap_bytes_, block_size_ = 0;
  bool reads_ahead_;
  tiered::FileOptions file_options_;
  std::string folder_;
  sdk::KvLayout all_heads_, one_head_;
  Records all_records_, one_records_;

  std::mutex mutex_;  // of all below but the last one
  std::condition_variable moved_;
  sdk::BlockTable<Bytes> table_{"tiered"};
  std::vector<Layer> layers_;
  std::optional<BlockFile> file_;  // reads and writes need no lock
  std::optional<Store> store_;     // nor does it
  uint64_t n_read_ = 0, n_loaded_ = 0;
  uint64_t tokens_leased_ = 0, tokens_missed_ = 0, memory_read_ = 0, memory_written_ = 0;
  bool full_told_ = false;
  Transfers transfers_;  // ends first: its thread uses the others
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.tiered", "0.1.0", Tiered)
