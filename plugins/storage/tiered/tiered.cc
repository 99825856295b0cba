// Storage in two tiers: the blocks used last stay in main memory, the others lie in a file and come
// back when a step asks for them, or when a selector foresees that it will.
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <array>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/block_table.h"
#include "plugins/sdk/kv_layout.h"
#include "plugins/sdk/plugin.h"
#include "plugins/storage/tiered/block_file.h"
#include "plugins/storage/tiered/transfers.h"

namespace {
using namespace kvasir;
using tiered::BlockFile;
using tiered::Extent;
using tiered::Transfers;

constexpr const char* kStrategies[] = {"lru", "fifo"};
constexpr const char* kCachedAliases[] = {"max_cached_block", nullptr};

constexpr std::array kOptions = {
    sdk::KvTypes::option_k(), sdk::KvTypes::option_v(),
    sdk::int_option({.key = "cached_blocks",
                     .help = "full blocks of a layer that stay in memory between steps",
                     .unit = "blocks",
                     .aliases = kCachedAliases},
                    32, 1, INT32_MAX),
    sdk::enum_option({.key = "cache_strategy",
                      .help = "which block leaves memory: the one used "
                              "longest ago, or the one that came first"},
                     kStrategies, 0),
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "folder",
                 .help = "folder of the file; default: the system's for temporary files",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr})};

// What the thread writes or reads while a step may drop the block: shared, so that it stays.
using Memory = std::shared_ptr<std::byte>;
// Mapped, so that what leaves memory leaves it: the heap would keep it for later.
Memory allocate(uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(data), [bytes](std::byte* p) { ::munmap(p, bytes); }};
}

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
                     .options = kOptions,
                     .caps = KVASIR_CAP_OWN_THREADS,
                     .dtypes = sdk::kElementTypes});

  Tiered(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        types_(options),
        cached_blocks_(options.u32("cached_blocks")),
        refresh_(options.choice("cache_strategy") == 0),
        folder_(options.delivered("folder") ? options.path("folder")
                                            : std::filesystem::temp_directory_path().string()),
        transfers_(*this, completion_of(host)) {}

  ~Tiered() {
    const std::lock_guard lock(mutex_);
    if (n_read_ != 0) tell_use();
  }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    out.n_tiers = 2;
    out.block_bytes = sdk::kv_layout(geometry, types_, geometry.n_kv_heads).block_bytes();
    out.resident_bytes = out.block_bytes * cached_blocks_ * geometry.n_layers;
    out.overhead_bytes = sdk::blocks_per_sequence(geometry) * geometry.n_layers *
                         geometry.max_sequences * sdk::BlockTable<Bytes>::bytes_per_block();
  }

  void bind(const kvasir_geometry& geometry) {
    table_.bind(geometry);
    all_heads_ = sdk::kv_layout(geometry, types_, geometry.n_kv_heads);
    one_head_ = sdk::kv_layout(geometry, types_, 1);
    layers_.resize(geometry.n_layers);
    file_.emplace(folder_);
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("tiered", all_heads_.format, out, capacity, n_formats);
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const std::lock_guard lock(mutex_);
    sdk::acquire_all(*this, "tiered", keys, mode, out);
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
    const std::lock_guard lock(mutex_);
    const auto is_resident = [&](uint64_t twin) {
      return table_.block(twin)->bytes.memory != nullptr;
    };
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
      block.bytes.used = ++clock_;
      layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
    }
    for (const uint64_t handle : given_up) remove(handle);
    transfers_.save(handles);
  }

  // UNREF and FORGET both free the bytes of both tiers: no block outlives its holder.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    const std::lock_guard lock(mutex_);
    sdk::drop_all(*this, table_, "tiered", keys, mode);
  }

  void prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint& hint, uint64_t ticket,
                uint32_t& accepted) {
    transfers_.start();
    std::vector<uint64_t> handles;
    {
      const std::lock_guard lock(mutex_);
      for (const kvasir_block_key& key : keys)
        handles.push_back(table_.find("prefetch", key, true));
    }
    accepted = static_cast<uint32_t>(handles.size());
    transfers_.load(ticket, std::move(handles), hint.priority != 0);
  }
  void cancel(uint64_t ticket) { transfers_.cancel(ticket); }
  void drain(uint64_t deadline_ms) { transfers_.drain(deadline_ms); }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    const Bytes& bytes = table_.block(handle)->bytes;
    if (bytes.lost) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    if (!bytes.memory) return table_.no_lease(key, KVASIR_LEASE_NOT_RESIDENT);
    ++n_read_;
    return lease(key, handle, false);
  }
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = table_.find_for_writing(key);
    if (handle == 0) {
      const sdk::KvLayout& layout = key.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
      Bytes bytes;
      bytes.memory = allocate(layout.block_bytes());
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
    if (block.bytes.sealed && block.bytes.memory)
      layers_[block.name.layer].resident_bytes -= layout_of(block).block_bytes();
    if (!block.bytes.saving) file_->give_back(block.bytes.saved);
    table_.remove(handle);
  }

 private:
  struct Bytes {
    Memory memory;           // null: in the file only
    Extent saved;            // valid: the file has it
    uint64_t used = 0;       // when, on clock_
    bool sealed = false;     // does not change
    bool saving = false;     // the io thread writes it
    bool lost = false;       // could not be read back
    bool may_leave = false;  // is in Layer::idle
  };
  using Block = sdk::BlockTable<Bytes>::Block;
  struct Layer {
    uint64_t resident_bytes = 0;        // of sealed blocks in memory
    std::map<uint64_t, uint64_t> idle;  // those that may leave it, by last use
    std::vector<uint64_t> fresh;        // read back for a step that has not ended
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

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = table_.lease(key, handle, write);
    Block& block = *table_.block(handle);
    stay(block);
    if (refresh_) block.bytes.used = ++clock_;
    point(out, key, handle);
    return out;
  }
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
    Block& block = *table_.block(handle);
    const sdk::KvLayout& layout = layout_of(block);
    const uint64_t skip = table_.first_head(key, handle);
    lease.k = block.bytes.memory.get() + skip * layout.format.k_head_stride;
    lease.v = block.bytes.memory.get() + layout.k_bytes + skip * layout.format.v_head_stride;
  }

  // A sealed block is to be written again: it comes back, and what the file has is void.
  void reopen(const kvasir_block_key& key, uint64_t handle) {
    std::unique_lock held(mutex_, std::adopt_lock);  // acquire()'s, which gets it back
    saved_.wait(held, [&] { return !table_.block(handle)->bytes.saving; });
    held.release();
    Block& block = *table_.block(handle);
    if (!block.bytes.sealed) return;
    const uint64_t bytes = layout_of(block).block_bytes();
    stay(block);
    if (!block.bytes.memory) {
      std::string why = "it was lost before";
      Memory memory = allocate(bytes);
      if (block.bytes.lost || !file_->read(block.bytes.saved, memory.get(), why))
        throw sdk::Error(KVASIR_ERR_IO,
                         table_.where("acquire", key) + "the block could not be read back: " + why);
      block.bytes.memory = std::move(memory);
    } else {
      layers_[block.name.layer].resident_bytes -= bytes;
    }
    file_->give_back(std::exchange(block.bytes.saved, {}));
    block.bytes.sealed = false;
  }

  void may_leave(uint64_t handle) noexcept {
    Block& block = *table_.block(handle);
    Bytes& bytes = block.bytes;
    if (block.n_leases != 0 || !bytes.saved.valid() || !bytes.memory || bytes.may_leave) return;
    try {
      layers_[block.name.layer].idle.emplace(bytes.used, handle);
      bytes.may_leave = true;
    } catch (const std::bad_alloc&) {  // it stays
    }
  }
  void stay(Block& block) noexcept {
    if (std::exchange(block.bytes.may_leave, false))
      layers_[block.name.layer].idle.erase(block.bytes.used);
  }

  // What was read back for a layer stays until the step's leases on it end: asked for or foreseen,
  // it is not pushed out by what else the step needs. That may exceed the limit so long.
  void end_step(uint32_t layer) noexcept {
    for (const uint64_t handle : layers_[layer].fresh)
      if (table_.block(handle)) may_leave(handle);
    layers_[layer].fresh.clear();
    trim(layer);
  }

  void trim(uint32_t layer_index) noexcept {
    Layer& layer = layers_[layer_index];
    const uint64_t limit = cached_blocks_ * all_heads_.block_bytes();
    while (layer.resident_bytes > limit && !layer.idle.empty()) {
      Block& block = *table_.block(layer.idle.begin()->second);
      layer.idle.erase(layer.idle.begin());
      block.bytes.may_leave = false;
      block.bytes.memory = nullptr;
      layer.resident_bytes -= layout_of(block).block_bytes();
    }
  }

  kvasir_status load(uint64_t handle, uint64_t& bytes) override {
    std::unique_lock lock(mutex_);
    const Block* wanted = table_.block(handle);
    if (!wanted || wanted->bytes.lost) return KVASIR_ERR_IO;
    if (wanted->bytes.memory) return KVASIR_OK;
    const Extent extent = wanted->bytes.saved;
    const uint32_t layer = wanted->name.layer;
    lock.unlock();
    std::string why;
    Memory memory = allocate(extent.bytes);
    const bool arrived = file_->read(extent, memory.get(), why);
    lock.lock();
    Block* block = table_.block(handle);
    if (!block) return KVASIR_ERR_IO;  // dropped meanwhile
    if (block->bytes.memory)
      return KVASIR_OK;  // reopened meanwhile, and its place given to another
    if (!arrived) {
      block->bytes.lost = true;
      host_.log(KVASIR_LOG_WARN, "block " + std::to_string(block->name.block) + " of layer " +
                                     std::to_string(layer) + " could not be read back: " + why);
      return KVASIR_ERR_IO;
    }
    bytes += extent.bytes;
    ++n_loaded_;
    bytes_loaded_ += extent.bytes;
    layers_[layer].fresh.push_back(handle);
    block->bytes.memory = std::move(memory);
    block->bytes.used = ++clock_;
    layers_[layer].resident_bytes += extent.bytes;
    return KVASIR_OK;
  }

  void save(uint64_t handle) override {
    std::unique_lock lock(mutex_);
    Block* block = table_.block(handle);
    if (!block || !block->bytes.sealed || block->bytes.saved.valid()) return;
    const Memory memory = block->bytes.memory;
    Extent extent = file_->reserve(layout_of(*block).block_bytes());
    block->bytes.saving = true;
    std::string why;
    lock.unlock();
    bool done = false;
    try {
      done = file_->write(extent, memory.get(), why);
    } catch (const std::bad_alloc&) {  // for the reason
    }
    lock.lock();
    block = table_.block(handle);
    if (!done || !block) file_->give_back(extent);
    if (block) {
      block->bytes.saving = false;
      if (done) {
        block->bytes.saved = extent;
        may_leave(handle);
        trim(block->name.layer);
      }
    }
    saved_.notify_all();
    if (!done && !std::exchange(full_told_, true))
      host_.log(KVASIR_LOG_WARN, "blocks stay in memory, beyond cached_blocks: the file in " +
                                     folder_ + " takes no more (" + why + ")");
  }

  void tell_use() const {
    host_.log(KVASIR_LOG_INFO, std::to_string(n_loaded_) + " blocks (" +
                                   std::to_string(bytes_loaded_ / 1000000) + " MB) read back for " +
                                   std::to_string(n_read_) + " leases, a file of " +
                                   std::to_string(file_->bytes() / 1000000) + " MB");
  }

  sdk::Host host_;
  sdk::KvTypes types_;
  uint32_t cached_blocks_;
  bool refresh_;
  std::string folder_;
  sdk::KvLayout all_heads_, one_head_;

  std::mutex mutex_;  // of all below but the last
  std::condition_variable saved_;
  sdk::BlockTable<Bytes> table_{"tiered"};
  std::vector<Layer> layers_;
  std::optional<BlockFile> file_;  // reads and writes need no lock
  uint64_t clock_ = 0, n_read_ = 0, n_loaded_ = 0, bytes_loaded_ = 0;
  bool full_told_ = false;
  Transfers transfers_;  // ends first: its thread uses the others
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.tiered", "0.1.0", Tiered)
