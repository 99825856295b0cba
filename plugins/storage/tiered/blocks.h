// The blocks of kvasir.tiered: what of each is in memory, in which file it lies, and who leaves
// memory, or a file for the next one, first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/tier_counters.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/storage/tiered/block_file.h"
#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/block_places.h"
#include "plugins/storage/tiered/move.h"
#include "plugins/storage/tiered/options.h"
#include "plugins/storage/tiered/pool.h"
#include "plugins/storage/tiered/transfers.h"

namespace kvasir::tiered {

class Store;

// For any thread, but for bind() and set_up(), which come first. Calls take the lock; none waits
// for the file but one that writes a sealed block again.
class Blocks final : public Transfers::Work {
 public:
  using Kept = std::vector<std::pair<kvasir_block_key, Memory>>;

  // store: null, or what may read the memory of sealed blocks; it outlives this.
  Blocks(const sdk::Host& host, const sdk::Options& options, Store* store);

  // Throws sdk::Error when a file cannot be made, or holds no block.
  void bind(const kvasir_geometry& geometry);
  const sdk::KvLayout& layout() const { return all_heads_; }  // of a block of all kv heads
  sdk::KvLayout layout(const kvasir_geometry& geometry) const;
  const FileChain& files() const { return files_; }
  // Whether all blocks of the layer stay in memory.
  bool keeps_all(const kvasir_geometry& geometry, uint32_t layer) const;
  // What is kept for blocks to come: no more than a layer has.
  static constexpr uint64_t spare_bytes(uint64_t layer_bytes) {
    return std::min(kMostSpareBytes, layer_bytes);
  }
  // Of tables, in memory.
  static constexpr uint64_t table_bytes_per_block() { return Table::bytes_per_block(); }
  // Of a call on a file.
  uint64_t piece_bytes() const;

  // READ or WRITE.
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out);
  void release(std::span<const uint64_t> leases);
  // Returns the blocks that are to be saved; adds to `kept` what the store is to keep.
  std::vector<uint64_t> seal(const sdk::BlockKeys& keys, const sdk::Leases& leases, Kept& kept);
  void drop(const sdk::BlockKeys& keys, uint32_t mode);

  // kvasir.block-heat/1.
  uint32_t wants_heat() const;
  void heat(const sdk::BlockKeys& keys, std::span<const float> values);

  // What `keys` need, in their order; of a block that is not there the handle is 0.
  std::vector<Load> loads_of(const sdk::BlockKeys& keys);
  // Of that what is not in memory. tier: by key, where what is needed was: 0 in memory, else in
  // file tier - 1.
  std::vector<Load> missing(const sdk::BlockKeys& keys, std::vector<uint32_t>& tier);

  // restore(), for blocks that are named by their content. hold(): whether a sealed block has the
  // name, which then gets its handle and counts one holder more. lease_held(): a lease on it, or,
  // when it did not become whole, false and a holder less; let_go() is the latter.
  bool is_named(const kvasir_block_key& key);
  bool hold(kvasir_block_key& key);
  bool lease_held(const kvasir_block_key& key, kvasir_lease& out);
  void let_go(const kvasir_block_key& key);
  // Bytes that came from the store, as a sealed block. Returns its handle.
  uint64_t add(const kvasir_block_key& key, Memory memory, kvasir_lease& out);
  kvasir_lease no_lease(const kvasir_block_key& key, uint32_t state) const;
  std::string where(const char* function, const kvasir_block_key& key) const;

  // Of memory, then of the files, without the times of reads.
  std::vector<kvasir_tier_count> tiers();
  void tell_use();  // to the log, if any

  // Of acquire_all() and its like, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key);
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created);
  bool give_back(uint64_t lease) noexcept;
  void remove(uint64_t handle) noexcept;

 private:
  static constexpr uint64_t kMostSpareBytes = uint64_t{64} << 20;

  struct Bytes {
    BlockMemory memory;
    Extent saved;          // valid: a file has it
    PoolUse use;           // in memory
    PoolUse file_use;      // in the file
    bool sealed = false;   // does not change
    bool saving = false;   // on its way to a file, or from one to the next
    bool loading = false;  // on its way from there
    bool lost = false;     // could not be read back
  };
  using Table = sdk::BlockTable<Bytes>;
  using Block = Table::Block;
  struct Layer {
    Pool pool;
    bool keeps_all = false;         // no block leaves memory, and none goes to a file
    uint64_t resident_bytes = 0;    // of sealed blocks in memory
    std::vector<uint64_t> fresh{};  // read back for a step that has not ended
    bool released = false;
    uint64_t n_told = 0;  // steps that said what its blocks are worth
  };

  Begun begin_load(const Load& load) override;
  kvasir_status end_load(uint64_t handle, Reading& reading) override;
  std::unique_ptr<Move> next_move(Save& save) override;
  void end_move(Save& save, Move& move) override;
  void give_up(Save& save) noexcept override;

  // All below: under the lock.
  const sdk::KvLayout& layout_of(uint32_t kv_head) const {
    return kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
  }
  const sdk::KvLayout& layout_of(const Block& block) const { return layout_of(block.name.kv_head); }
  const Records& records_of(const Block& block) const;
  const BlockPlaces& places_of(uint32_t kv_head) const {
    return kv_head == KVASIR_ALL_HEADS ? all_places_ : one_places_[kv_head];
  }
  // For a block, all of which is written, or some tokens; throws bad_alloc.
  Memory memory_for_all(uint32_t kv_head);
  Memory memory_for_some(uint32_t kv_head);
  void place(uint32_t kv_head, std::byte* memory, sdk::Touched touched);
  uint64_t memory_bytes(const Block& block) const;
  TokenSet covered_by(const kvasir_block_key& key, const Block& block) const;
  TokenSet needed_of(const kvasir_block_key& key, const Block& block) const;
  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write);
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle);
  // A sealed block is to be written again: it comes back, and what the file has is void.
  void reopen(const kvasir_block_key& key, uint64_t handle);
  void complete(const kvasir_block_key& key, Block& block);
  void came(Block& block);  // all of it, sealed
  void may_leave(uint64_t handle) noexcept;
  void stay(Block& block) noexcept { layers_[block.name.layer].pool.remove_idle(block.bytes.use); }
  void end_step(uint32_t layer) noexcept;
  void trim(uint32_t layer) noexcept;
  void take(Block& block, Reading& reading);  // what arrived is the block's
  void free_left(uint64_t handle) noexcept;
  std::unique_ptr<Reading> reading_of(const Block& block, TokenSet wanted);
  void lose(Block& block, const std::string& why);
  void check_space(const kvasir_block_key& key) const;
  // In its file; only where there is another one behind it.
  void settle(uint64_t handle, const Extent& saved) noexcept;
  void used_in_file(uint64_t handle, bool is_first) noexcept;
  void unsettle(Block& block) noexcept;
  std::unique_ptr<Move> move_of(const Save::Step& step, Block& block);
  bool make_room(Save& save);  // false: nobody can go on from that file
  void end_step_of(const Save::Step& step, Block& block, const Extent& to);
  void stop(const Save::Step& step) noexcept;
  void give_up_locked(Save& save) noexcept;
  void tell_full(const Save& save, const std::string& why);

  sdk::Host host_;
  Store* store_;
  sdk::KvTypes types_;
  uint32_t cached_blocks_;
  bool keep_dense_layers_;
  Victim victim_;
  double score_decay_;
  uint32_t gap_bytes_, block_size_ = 0;
  FileOptions file_options_;
  std::vector<FilePlace> places_;  // of the files
  sdk::KvLayout all_heads_, one_head_;
  Records all_records_, one_records_;
  BlockPlaces all_places_;
  std::vector<BlockPlaces> one_places_;  // by kv head

  std::mutex mutex_;  // of all below
  std::condition_variable moved_;
  Table table_{"tiered"};
  SpareMemory spare_;
  std::vector<Layer> layers_;
  FileChain files_;                            // reads and writes need no lock
  std::unordered_map<uint64_t, Extent> left_;  // of blocks that moved on while a load reads there
  std::vector<Pool> file_pools_;               // by file, but for the last one
  uint64_t promised_bytes_ = 0;                // in files, of all blocks
  uint64_t limit_bytes_ = 0;                   // of these; 0: none
  uint64_t n_read_ = 0, n_loaded_ = 0;
  uint64_t tokens_leased_ = 0, memory_read_ = 0, memory_written_ = 0;
  std::vector<uint64_t> tokens_missed_;  // by file
  bool full_told_ = false, refusal_told_ = false;
};

}  // namespace kvasir::tiered
