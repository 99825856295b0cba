// Storage in two tiers: the blocks used last stay in main memory, the others lie in a file and come
// back when a step asks for them, or when a selector foresees that it will: whole, or the tokens
// that are needed.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/tier_counters.h>
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
#include "plugins/storage/tiered/records.h"
#include "plugins/storage/tiered/token_set.h"
#include "plugins/storage/tiered/transfers.h"

namespace {
using namespace kvasir;
using tiered::BlockFile;
using tiered::Extent;
using tiered::Load;
using tiered::Records;
using tiered::TokenSet;
using tiered::Transfers;

constexpr const char* kStrategies[] = {"lru", "fifo"};
constexpr const char* kCachedAliases[] = {"max_cached_block", nullptr};

constexpr std::array kOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::int_option({.key = "cached_blocks",
                     .help = "full blocks of a layer that stay in memory between steps",
                     .unit = "blocks",
                     .aliases = kCachedAliases},
                    32, 1, INT32_MAX),
    sdk::enum_option({.key = "cache_strategy",
                      .help = "which block leaves memory: the one used "
                              "longest ago, or the one that came first"},
                     kStrategies, 0),
    sdk::int_option({.key = "gap_bytes",
                     .help = "tokens that lie closer in the file are read in one call, with what "
                             "lies between",
                     .unit = "bytes"},
                    4096, 0, INT32_MAX),
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

constexpr uint64_t kPage = 4096;  // of memory

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
        gap_bytes_(options.u32("gap_bytes")),
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
    block_size_ = geometry.block_size;
    all_records_ = Records(all_heads_, geometry.n_kv_heads, block_size_);
    one_records_ = Records(one_head_, 1, block_size_);
    layers_.resize(geometry.n_layers);
    file_.emplace(folder_);
  }

  const void* get_extension(const char* id) const {
    static constexpr kvasir_tier_counters kCounters = {
        sizeof(kvasir_tier_counters), 0,
        [](void* self, kvasir_tier_count* out, uint32_t capacity, uint32_t count_size,
           uint32_t* n_tiers, kvasir_err* err) noexcept {
          return sdk::guard(err, [&] {
            const auto tiers = sdk::detail::as<Tiered>(self).tiers();
            *n_tiers = static_cast<uint32_t>(tiers.size());
            const sdk::Strided<kvasir_tier_count> list(out, std::min(capacity, *n_tiers),
                                                       count_size);
            for (uint32_t i = 0; i < list.size(); ++i) list[i] = tiers[i];
          });
        }};
    return std::string_view(id) == KVASIR_EXT_TIER_COUNTERS ? &kCounters : nullptr;
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

  // A full block does not change any more: it goes to the file, and may then leave memory.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    transfers_.start();
    const std::lock_guard lock(mutex_);
    table_.seal(keys, leases);
    std::vector<uint64_t> handles;
    for (uint64_t i = 0; i < keys.size(); ++i) {
      handles.push_back(leases[i].handle);
      Block& block = *table_.block(handles.back());
      block.bytes.sealed = true;
      block.bytes.used = ++clock_;
      layers_[block.name.layer].resident_bytes += layout_of(block).block_bytes();
    }
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
    std::vector<Load> loads;
    {
      const std::lock_guard lock(mutex_);
      for (const kvasir_block_key& key : keys) {
        const uint64_t handle = table_.find("prefetch", key, true);
        loads.push_back({handle, handle ? needed_of(key, *table_.block(handle)) : TokenSet()});
      }
    }
    accepted = static_cast<uint32_t>(loads.size());
    transfers_.load(ticket, std::move(loads), hint.priority != 0);
  }
  void cancel(uint64_t ticket) { transfers_.cancel(ticket); }
  void drain(uint64_t deadline_ms) { transfers_.drain(deadline_ms); }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    const Block& block = *table_.block(handle);
    if (block.bytes.lost) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    if (block.bytes.memory && !block.bytes.partial) {
      ++n_read_;
      tokens_leased_ += n_needed(key);
      return lease(key, handle, false);
    }
    const TokenSet needed = needed_of(key, block);
    if (const uint32_t n_missing = missing(needed, block).count(); n_missing != 0) {
      tokens_missed_ += n_missing;
      return table_.no_lease(key, KVASIR_LEASE_NOT_RESIDENT);
    }
    ++n_read_;
    tokens_leased_ += needed.count();
    kvasir_lease out = lease(key, handle, false);
    if (!missing(covered_by(key, block), block).empty()) out.state = KVASIR_LEASE_PARTIAL;
    return out;
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
    if (block.bytes.sealed) layers_[block.name.layer].resident_bytes -= memory_bytes(block);
    if (!block.bytes.saving) file_->give_back(block.bytes.saved);
    table_.remove(handle);
  }

 private:
  struct Partial {
    TokenSet present;
    uint64_t bytes = 0;  // of the pages that hold them
  };
  struct Bytes {
    Memory memory;                     // null: in the file only
    std::unique_ptr<Partial> partial;  // null: memory has all of it
    Extent saved;                      // valid: the file has it
    uint64_t used = 0;                 // when, on clock_
    bool sealed = false;               // does not change
    bool saving = false;               // the io thread writes it
    bool loading = false;              // the io thread reads it
    bool lost = false;                 // could not be read back
    bool may_leave = false;            // is in Layer::idle
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
  const Records& records_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
  }

  // What a key names, as tokens of the block: all of it, or the head that it is a slice of.
  TokenSet covered_by(const kvasir_block_key& key, const Block& block) const {
    const uint32_t n = records_of(block).size();
    if (block.name.kv_head == key.kv_head) return TokenSet::range(n, 0, n);
    return TokenSet::range(n, key.kv_head * block_size_, (key.kv_head + 1) * block_size_);
  }
  uint64_t n_needed(const kvasir_block_key& key) const {
    const uint32_t n = key.kv_head == KVASIR_ALL_HEADS ? all_records_.size() : block_size_;
    return key.needed ? TokenSet::from_words(n, 0, n, key.needed).count() : n;
  }
  TokenSet needed_of(const kvasir_block_key& key, const Block& block) const {
    if (!key.needed) return covered_by(key, block);
    const uint32_t n = records_of(block).size();
    if (block.name.kv_head == key.kv_head) return TokenSet::from_words(n, 0, n, key.needed);
    return TokenSet::from_words(n, key.kv_head * block_size_, block_size_, key.needed);
  }
  static TokenSet missing(TokenSet needed, const Block& block) {
    if (!block.bytes.memory) return needed;
    if (!block.bytes.partial) return {};
    needed.remove(block.bytes.partial->present);
    return needed;
  }
  // That a block takes: whole pages of those that hold something.
  uint64_t memory_bytes(const Block& block) const {
    if (!block.bytes.memory) return 0;
    return block.bytes.partial ? block.bytes.partial->bytes : layout_of(block).block_bytes();
  }
  uint64_t page_bytes(const Block& block) const {
    const TokenSet& present = block.bytes.partial->present;
    uint64_t n_pages = 0, k_end = 0, v_end = 0;  // pages counted so far end there
    const auto touch = [&](uint64_t begin, uint64_t end, uint64_t& counted) {
      const uint64_t first = std::max(begin / kPage, counted), last = (end - 1) / kPage + 1;
      if (last > first) n_pages += last - first;
      counted = std::max(counted, last);
    };
    for (uint32_t i = present.next(0); i < present.size(); i = present.next(i + 1)) {
      const Records::Place place = records_of(block).place(i);
      touch(place.k_begin, place.k_end, k_end);
      touch(place.v_begin, place.v_end, v_end);
    }
    return std::min(n_pages * kPage, layout_of(block).block_bytes());
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
    moved_.wait(held, [&] {
      const Bytes& bytes = table_.block(handle)->bytes;
      return !bytes.saving && !bytes.loading;
    });
    held.release();
    Block& block = *table_.block(handle);
    if (!block.bytes.sealed) return;
    stay(block);
    if (!block.bytes.memory || block.bytes.partial) complete(key, block);
    layers_[block.name.layer].resident_bytes -= memory_bytes(block);
    file_->give_back(std::exchange(block.bytes.saved, {}));
    block.bytes.sealed = false;
  }
  void complete(const kvasir_block_key& key, Block& block) {
    Reading reading = start_reading(missing(covered_by(key, block), block), block);
    if (!reading.memory) reading.memory = allocate(layout_of(block).block_bytes());
    std::string why = "it was lost before";
    if (block.bytes.lost || !read(reading, why))
      throw sdk::Error(KVASIR_ERR_IO,
                       table_.where("acquire", key) + "the block could not be read back: " + why);
    take(block, reading);
  }

  void may_leave(uint64_t handle) noexcept {
    Block& block = *table_.block(handle);
    Bytes& bytes = block.bytes;
    if (block.n_leases != 0 || !bytes.saved.valid() || !bytes.memory || bytes.may_leave ||
        bytes.loading)
      return;
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
      layer.resident_bytes -= memory_bytes(block);
      block.bytes.memory = nullptr;
      block.bytes.partial = nullptr;
    }
  }

  // Records on their way from the file into the memory of a block.
  struct Reading {
    Extent from;
    const Records* records;
    TokenSet wanted, arrived, present;  // of the block's size; present: already in memory
    Memory memory;
    uint64_t bytes = 0;  // read of the file
  };
  // False with a reason in `why` when one of the wanted did not arrive. Runs of records that lie
  // close are read in one call; what lies between is kept unless it is damaged, which is then for
  // the one who wants it to find. Present ones are not written again: others read them.
  bool read(Reading& reading, std::string& why) {
    const Records& records = *reading.records;
    const TokenSet& wanted = reading.wanted;
    const uint64_t size = records.record_bytes();
    std::vector<std::byte> buffer;
    for (uint32_t begin = wanted.next(0); begin < wanted.size();) {
      uint32_t end = begin + 1, next = wanted.next(end);
      while (next < wanted.size() && (next - end) * size <= gap_bytes_) {
        end = next + 1;
        next = wanted.next(end);
      }
      buffer.resize((end - begin) * size);
      if (!file_->read(reading.from, begin * size, buffer.size(), buffer.data(), why)) return false;
      reading.bytes += buffer.size();
      for (uint32_t i = begin; i < end; ++i) {
        const std::byte* record = buffer.data() + (i - begin) * size;
        if (reading.present.has(i)) continue;
        if (records.intact(record, reading.from.seed, i)) {
          records.unpack(record, i, reading.memory.get());
          reading.arrived.add(i);
        } else if (wanted.has(i)) {
          why = "the bytes of token " + std::to_string(i % block_size_) + " of kv head " +
                std::to_string(i / block_size_) + " changed on the way";
          return false;
        }
      }
      begin = next;
    }
    return true;
  }
  // What arrived is the block's.
  void take(Block& block, Reading& reading) {
    Bytes& bytes = block.bytes;
    const uint64_t before = memory_bytes(block);
    const uint64_t n_arrived = reading.arrived.count();
    reading.arrived.add(reading.present);
    if (reading.arrived.full()) {
      bytes.partial = nullptr;
    } else {
      if (!bytes.partial) bytes.partial = std::make_unique<Partial>();
      bytes.partial->present = std::move(reading.arrived);
      bytes.partial->bytes = page_bytes(block);
    }
    bytes.memory = std::move(reading.memory);
    memory_written_ += n_arrived * reading.records->data_bytes();
    layers_[block.name.layer].resident_bytes += memory_bytes(block) - before;
  }
  Reading start_reading(TokenSet wanted, const Block& block) const {
    const Records& records = records_of(block);
    Reading out{block.bytes.saved,
                &records,
                std::move(wanted),
                TokenSet(records.size()),
                block.bytes.partial ? block.bytes.partial->present : TokenSet(records.size()),
                block.bytes.memory};
    return out;
  }

  kvasir_status load(const Load& wanted, uint64_t& bytes) override {
    std::unique_lock lock(mutex_);
    Block* block = table_.block(wanted.handle);
    if (!block || block->bytes.lost) return KVASIR_ERR_IO;
    Reading reading = start_reading(missing(wanted.tokens, *block), *block);
    if (reading.wanted.empty()) return KVASIR_OK;
    layers_[block->name.layer].fresh.push_back(wanted.handle);
    block->bytes.loading = true;  // and so it stays
    stay(*block);
    const uint64_t memory_bytes = layout_of(*block).block_bytes();
    lock.unlock();
    std::string why = "memory is full";
    bool arrived = false;
    try {
      if (!reading.memory) reading.memory = allocate(memory_bytes);
      arrived = read(reading, why);
    } catch (const std::bad_alloc&) {
    }
    lock.lock();
    bytes += reading.bytes;
    moved_.notify_all();
    block = table_.block(wanted.handle);
    if (!block) return KVASIR_ERR_IO;  // dropped meanwhile
    block->bytes.loading = false;
    if (arrived) {
      take(*block, reading);
      block->bytes.used = ++clock_;
      ++n_loaded_;
      return KVASIR_OK;
    }
    block->bytes.lost = true;
    host_.log(KVASIR_LOG_WARN, "block " + std::to_string(block->name.block) + " of layer " +
                                   std::to_string(block->name.layer) +
                                   " could not be read back: " + why);
    return KVASIR_ERR_IO;
  }

  void save(uint64_t handle) override {
    std::unique_lock lock(mutex_);
    Block* block = table_.block(handle);
    if (!block || !block->bytes.sealed || block->bytes.saved.valid()) return;
    const Memory memory = block->bytes.memory;
    const Records& records = records_of(*block);
    const Extent extent = file_->reserve(records.block_bytes());
    block->bytes.saving = true;
    std::string why;
    lock.unlock();
    bool done = false;
    try {
      std::vector<std::byte> packed(records.block_bytes());
      records.pack(memory.get(), extent.seed, packed.data());
      done = file_->write(extent, packed.data(), why);
    } catch (const std::bad_alloc&) {  // for the reason
    }
    lock.lock();
    block = table_.block(handle);
    if (!done || !block) file_->give_back(extent);
    if (block) {
      block->bytes.saving = false;
      if (done) {
        block->bytes.saved = extent;
        memory_read_ += records.size() * records.data_bytes();
        may_leave(handle);
        trim(block->name.layer);
      }
    }
    moved_.notify_all();
    if (!done && !std::exchange(full_told_, true))
      host_.log(KVASIR_LOG_WARN, "blocks stay in memory, beyond cached_blocks: the file in " +
                                     folder_ + " takes no more (" + why + ")");
  }

  std::array<kvasir_tier_count, 2> tiers() {
    const std::lock_guard lock(mutex_);
    return {{{"memory", memory_read_, memory_written_, tokens_leased_},
             {"file", file_->bytes_read(), file_->bytes_written(), tokens_missed_}}};
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
  bool refresh_;
  uint32_t gap_bytes_, block_size_ = 0;
  std::string folder_;
  sdk::KvLayout all_heads_, one_head_;
  Records all_records_, one_records_;

  std::mutex mutex_;  // of all below but the last
  std::condition_variable moved_;
  sdk::BlockTable<Bytes> table_{"tiered"};
  std::vector<Layer> layers_;
  std::optional<BlockFile> file_;  // reads and writes need no lock
  uint64_t clock_ = 0, n_read_ = 0, n_loaded_ = 0;
  uint64_t tokens_leased_ = 0, tokens_missed_ = 0, memory_read_ = 0, memory_written_ = 0;
  bool full_told_ = false;
  Transfers transfers_;  // ends first: its thread uses the others
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.tiered", "0.1.0", Tiered)
