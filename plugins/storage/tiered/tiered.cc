// Storage in two tiers: the blocks used last stay in main memory, the others lie in a file and come
// back when a step asks for them, or when a selector foresees that it will.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/completion.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plugins/sdk/block_table.h"
#include "plugins/sdk/kv_layout.h"
#include "plugins/sdk/plugin.h"
#include "plugins/storage/tiered/block_file.h"

namespace {
using namespace kvasir;
using tiered::BlockFile;
using tiered::Extent;

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

// What the io thread writes or reads while a step may drop the block: shared, so that it stays.
using Memory = std::shared_ptr<std::byte>;
Memory allocate(uint64_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return {data, [](std::byte* p) { ::operator delete(p, kAlignment); }};
}

class Tiered {
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
                     .dtypes = sdk::KvTypes::kAll});

  Tiered(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        completion_(host.completion()),
        types_(options),
        cached_blocks_(options.u32("cached_blocks")),
        refresh_(options.choice("cache_strategy") == 0),
        folder_(options.delivered("folder") ? options.path("folder") : "") {
    if (!completion_)
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                       std::string("tiered: the host does not offer ") + KVASIR_EXT_COMPLETION);
    if (folder_.empty()) folder_ = std::filesystem::temp_directory_path().string();
  }

  ~Tiered() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (file_ && n_read_ != 0) tell_use();
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
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    n_formats = 1;
    if (capacity < 1) throw sdk::Error(KVASIR_ERR_CAPACITY, "tiered: formats needs room for 1");
    out[0] = all_heads_.format;
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const std::lock_guard lock(mutex_);
    sdk::acquire_all(*this, "tiered", keys, mode, out);
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    for (const uint64_t lease : leases) {
      if (lease != 0 && !give_back(lease))
        host_.log(KVASIR_LOG_WARN,
                  "release: lease " + std::to_string(lease) + " is not out; released twice?");
    }
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) trim(layer);
  }

  // A full block does not change any more: it goes to the file, and may then leave memory.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    const std::lock_guard lock(mutex_);
    table_.seal(keys, leases);
    start();
    for (uint64_t i = 0; i < keys.size(); ++i) {
      Block& block = *table_.block(leases[i].handle);
      block.bytes.sealed = true;
      block.bytes.used = ++clock_;
      layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
      saves_.push_back(leases[i].handle);
    }
    work_.notify_all();
  }

  // UNREF and FORGET both free the bytes of both tiers: no block outlives its holder.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    if (mode != KVASIR_DROP_UNREF && mode != KVASIR_DROP_FORGET)
      sdk::fail_invalid("tiered: drop: mode " + std::to_string(mode) + " is not UNREF or FORGET");
    const std::lock_guard lock(mutex_);
    for (const kvasir_block_key& key : keys) table_.check_drop(key);
    for (const kvasir_block_key& key : keys)
      if (const uint64_t handle = table_.drop(key)) remove(handle);
  }

  void prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint& hint, uint64_t ticket,
                uint32_t& accepted) {
    const std::lock_guard lock(mutex_);
    Job job{ticket, {}, false};
    for (const kvasir_block_key& key : keys)
      job.handles.push_back(table_.find("prefetch", key, true));
    start();
    (hint.priority == 0 ? foreseen_ : urgent_).push_back(std::move(job));
    accepted = static_cast<uint32_t>(keys.size());
    work_.notify_all();
  }

  void cancel(uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    for (std::deque<Job>* queue : {&urgent_, &foreseen_})
      for (Job& job : *queue) job.cancelled |= job.ticket == ticket;
    if (running_ && running_->ticket == ticket) running_->cancelled = true;
  }

  // What was asked for is read until the deadline; then the rest is cancelled.
  void drain(uint64_t deadline_ms) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return urgent_.empty() && foreseen_.empty() && !running_; };
    if (idle_.wait_for(lock, std::chrono::milliseconds(deadline_ms), done)) return;
    for (std::deque<Job>* queue : {&urgent_, &foreseen_})
      for (Job& job : *queue) job.cancelled = true;
    if (running_) running_->cancelled = true;
    idle_.wait(lock, done);
  }

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
    may_leave(handle);
    return true;
  }
  void remove(uint64_t handle) noexcept {
    Block& block = *table_.block(handle);
    stay(block);
    if (block.bytes.sealed && block.bytes.memory)
      layers_[block.name.layer].resident_bytes -= layout_of(block).block_bytes();
    if (file_ && !block.bytes.saving) file_->give_back(block.bytes.saved);
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
  };
  struct Job {
    uint64_t ticket;
    std::vector<uint64_t> handles;
    bool cancelled;
  };

  const sdk::KvLayout& layout_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
  }

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = table_.lease(key, handle, write);
    Block& block = *table_.block(handle);
    stay(block);
    if (refresh_) block.bytes.used = ++clock_;
    const sdk::KvLayout& layout = layout_of(block);
    const uint64_t skip = table_.first_head(key, handle);
    out.k = block.bytes.memory.get() + skip * layout.format.k_head_stride;
    out.v = block.bytes.memory.get() + layout.k_bytes + skip * layout.format.v_head_stride;
    return out;
  }

  // A sealed block is to be written again: it comes back, and what the file has is void.
  void reopen(const kvasir_block_key& key, uint64_t handle) {
    std::unique_lock held(mutex_, std::adopt_lock);  // acquire()'s, which gets it back
    idle_.wait(held, [&] { return !table_.block(handle)->bytes.saving; });
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

  // What a step needs at once may exceed the limit until it is released.
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

  // File and thread come with the first block that needs them.
  void start() {
    if (!file_) file_.emplace(folder_);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] {
        return stopping_ || !urgent_.empty() || !foreseen_.empty() || !saves_.empty();
      });
      if (!urgent_.empty() || !foreseen_.empty()) {
        run(urgent_.empty() ? foreseen_ : urgent_, lock);
      } else if (stopping_) {
        return;
      } else {
        const uint64_t handle = saves_.front();
        saves_.pop_front();
        save(handle, lock);
      }
      idle_.notify_all();
    }
  }

  // The first of `queue`, and its report.
  void run(std::deque<Job>& queue, std::unique_lock<std::mutex>& lock) {
    Job job = std::move(queue.front());
    queue.pop_front();
    job.cancelled |= stopping_;
    running_ = &job;
    std::vector<kvasir_status> status(job.handles.size());
    kvasir_status whole = KVASIR_OK;
    uint64_t bytes = 0;
    for (size_t i = 0; i < status.size(); ++i) {
      status[i] = job.cancelled ? KVASIR_ERR_CANCELLED : load(job.handles[i], lock, bytes);
      if (status[i] != KVASIR_OK) whole = status[i];
    }
    running_ = nullptr;
    lock.unlock();
    completion_->complete(completion_->self, job.ticket, whole, status.data(),
                          static_cast<uint32_t>(status.size()), bytes);
    lock.lock();
  }

  kvasir_status load(uint64_t handle, std::unique_lock<std::mutex>& lock, uint64_t& bytes) {
    const Block* wanted = table_.block(handle);
    if (!wanted || wanted->bytes.lost) return KVASIR_ERR_IO;
    if (wanted->bytes.memory) return KVASIR_OK;
    const Extent extent = wanted->bytes.saved;
    const uint32_t layer = wanted->name.layer;
    std::string why = "out of memory";
    lock.unlock();
    Memory memory;
    bool arrived = false;
    try {
      memory = allocate(extent.bytes);
      arrived = file_->read(extent, memory.get(), why);
    } catch (const std::bad_alloc&) {
    }
    lock.lock();
    Block* block = table_.block(handle);
    if (!block) return KVASIR_ERR_IO;  // dropped meanwhile
    if (!arrived) {
      block->bytes.lost = memory != nullptr;
      host_.log(KVASIR_LOG_WARN, "block " + std::to_string(block->name.block) + " of layer " +
                                     std::to_string(layer) + " could not be read back: " + why);
      return memory ? KVASIR_ERR_IO : KVASIR_ERR_OUT_OF_MEMORY;
    }
    bytes += extent.bytes;
    ++n_loaded_;
    bytes_loaded_ += extent.bytes;
    if (block->bytes.memory) return KVASIR_OK;  // reopened meanwhile
    block->bytes.memory = std::move(memory);
    block->bytes.used = ++clock_;
    layers_[layer].resident_bytes += extent.bytes;
    may_leave(handle);
    return KVASIR_OK;
  }

  void save(uint64_t handle, std::unique_lock<std::mutex>& lock) {
    Block* block = table_.block(handle);
    if (!block || !block->bytes.sealed || block->bytes.saved.valid()) return;
    const Memory memory = block->bytes.memory;
    Extent extent = file_->reserve(layout_of(*block).block_bytes());
    block->bytes.saving = true;
    std::string why;
    lock.unlock();
    const bool done = file_->write(extent, memory.get(), why);
    lock.lock();
    block = table_.block(handle);
    if (!done || !block) file_->give_back(extent);
    if (!done && !std::exchange(full_told_, true))
      host_.log(KVASIR_LOG_WARN, "blocks stay in memory, beyond cached_blocks: the file in " +
                                     folder_ + " takes no more (" + why + ")");
    if (!block) return;
    block->bytes.saving = false;
    if (!done) return;
    block->bytes.saved = extent;
    may_leave(handle);
    trim(block->name.layer);
  }

  void tell_use() const {
    host_.log(KVASIR_LOG_INFO, std::to_string(n_loaded_) + " blocks (" +
                                   std::to_string(bytes_loaded_ / 1000000) + " MB) read back for " +
                                   std::to_string(n_read_) + " leases, a file of " +
                                   std::to_string(file_->bytes() / 1000000) + " MB");
  }

  sdk::Host host_;
  const kvasir_completion* completion_;
  sdk::KvTypes types_;
  uint32_t cached_blocks_;
  bool refresh_;
  std::string folder_;
  sdk::KvLayout all_heads_, one_head_;

  std::mutex mutex_;                     // of all below
  std::condition_variable work_, idle_;  // something to do; something done
  sdk::BlockTable<Bytes> table_{"tiered"};
  std::vector<Layer> layers_;
  std::optional<BlockFile> file_;
  std::deque<Job> urgent_, foreseen_;
  std::deque<uint64_t> saves_;
  Job* running_ = nullptr;
  uint64_t clock_ = 0, n_read_ = 0, n_loaded_ = 0, bytes_loaded_ = 0;
  bool stopping_ = false, full_told_ = false;
  std::thread thread_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.tiered", "0.1.0", Tiered)
