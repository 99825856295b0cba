// The blocks of kvasir.gpu_tiered: those used last have a frame in the device's memory, with all of
// their tokens or those that were needed; kvasir.tiered below has them all. A full block does not
// change, so its frame is a copy that may be dropped at any time. A block that is being filled lies
// on the device alone, and goes down when it is full.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/tier_counters.h>
#include <kvasir/sdk/plugin.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/token_rows.h"
#include "plugins/shared/block_table.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/device_frames.h"
#include "plugins/storage/tiered/carrier.h"
#include "plugins/storage/tiered/pool.h"
#include "plugins/storage/tiered/records.h"
#include "plugins/storage/tiered/tiered.h"

namespace kvasir::tiered {

// For any thread, but for bind(), which comes first.
class DeviceBlocks final : public Carrier::Work {
 public:
  static constexpr const char* kName = "gpu_tiered";  // in messages

  // below: keeps all blocks; it outlives this.
  DeviceBlocks(const sdk::Host& host, const sdk::Options& options, Tiered& below);
  ~DeviceBlocks();
  DeviceBlocks(const DeviceBlocks&) = delete;

  void bind(const kvasir_geometry& geometry);
  const sdk::DeviceFrames& frames() const { return *frames_; }
  const sdk::KvTypes& types() const { return types_; }
  // Between steps, of all layers.
  uint64_t resident_bytes(const kvasir_geometry& geometry) const;
  // Of a block, in main memory.
  static constexpr uint64_t table_bytes_per_block() { return Table::bytes_per_block(); }
  // What travels together, in main memory.
  static constexpr uint64_t kStagingBytes = uint64_t{4} << 20;

  // READ or WRITE. WRITE waits for moves of blocks that it opens again.
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out);
  void release(std::span<const uint64_t> leases);
  // Returns the blocks that are to be saved.
  std::vector<uint64_t> seal(const sdk::BlockKeys& keys, const sdk::Leases& leases);
  void drop(const sdk::BlockKeys& keys, uint32_t mode);  // waits for their moves
  void heat(const sdk::BlockKeys& keys, std::span<const float> values);
  // Throws sdk::Error for a lease that is not on the device.
  template <class Tokens>
  void check(const Tokens& tokens) {
    const std::lock_guard lock(mutex_);
    frames_->check(kName, tokens);
  }

  // What `keys` need, in their order.
  std::vector<Request> requests_of(const sdk::BlockKeys& keys);
  // Of that what is not on the device; key: by request, which key it is of. is_asked: a step asks,
  // and what is there stays until it ends.
  std::vector<Request> missing(const sdk::BlockKeys& keys, bool is_asked, std::vector<size_t>& key);

  // What came for other steps, or was foreseen, may leave, but for what `keys` name.
  void let_go_of_others(const sdk::BlockKeys& keys);

  // The device, and what `below` says with what travelled in between.
  std::vector<kvasir_tier_count> tiers();

  // Of acquire_all() and its like, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key);
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created);
  bool give_back(uint64_t lease) noexcept;
  void remove(uint64_t handle) noexcept;

 private:
  struct Bytes {
    std::byte* frame = nullptr;
    std::unique_ptr<TokenSet> some;  // that are in the frame; null: all, if there is a frame
    kvasir_block_key below{};
    std::unique_ptr<kvasir_lease> written;  // of `below`, until its bytes have gone there
    PoolUse use;
    bool sealed = false;
    bool by_content = false;  // it was sealed under the name of its content
    bool moving = false;
    bool lost = false;  // `below` could not read it
  };
  using Table = sdk::BlockTable<Bytes>;
  using Block = Table::Block;
  struct Layer {
    Pool pool;
    uint64_t resident_bytes = 0;    // frames of sealed blocks
    std::vector<uint64_t> fresh{};  // came for a step that has not ended
    bool released = false;
    uint64_t n_told = 0;  // steps that said what its blocks are worth
  };
  // A block on its way up.
  struct Coming {
    Request* request;
    kvasir_block_key key;  // below
    TokenSet tokens;
    std::byte* frame;
    kvasir_lease lease{};  // below
  };
  // And down.
  struct Going {
    uint64_t handle;
    kvasir_block_key key;
    kvasir_lease lease;
    const std::byte* frame;
    uint64_t bytes;
  };

  size_t load(std::span<Request> some, bool is_asked) noexcept override;
  size_t save(std::span<const uint64_t> handles) noexcept override;
  // Without the lock, by the carrier's thread.
  void lease_below(std::vector<Coming>& coming, bool is_asked);
  void copy_up(std::vector<Coming>& coming);
  uint64_t copy_rows(const std::vector<Coming>& coming, uint64_t at);  // returns how many copies
  void copy_down(std::vector<Going>& going);

  // All below: under the lock.
  const sdk::KvLayout& layout_of(const Block& block) const {
    return frames_->layout(block.name.kv_head);
  }
  uint64_t frame_bytes(const Block& block) const { return layout_of(block).block_bytes(); }
  const Records& records_of(uint32_t kv_head) const {
    return kv_head == KVASIR_ALL_HEADS ? all_records_ : one_records_;
  }
  TokenSet missing_of(const kvasir_block_key& key, const Block& block) const;
  TokenSet without_present(const Block& block, TokenSet tokens) const;
  uint64_t most_staged(const Block& block, const Request& request) const;  // bytes
  void begin(Request& request, std::vector<Coming>& coming);
  void end(const Coming& one);
  uint64_t create(const kvasir_block_key& key);
  void reopen(const kvasir_block_key& key, Block& block);
  void open_below(const kvasir_block_key& key, Bytes& bytes);
  void close_below(Bytes& bytes) noexcept;
  std::byte* allocate(const kvasir_block_key& key);
  bool make_room() noexcept;
  void give_up_frame(Block& block) noexcept;
  void wait_for_moves(const char* function, const sdk::BlockKeys& keys,
                      std::unique_lock<std::mutex>& lock);
  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write);
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle);
  void stay(Block& block) noexcept { layers_[block.name.layer].pool.remove_idle(block.bytes.use); }
  void may_leave(uint64_t handle) noexcept;
  void end_step(uint32_t layer) noexcept;
  void trim(uint32_t layer) noexcept;
  void evict(uint64_t handle) noexcept;

  sdk::Host host_;
  Tiered& below_;
  sdk::KvTypes types_;
  uint64_t device_blocks_, max_bytes_;
  Victim victim_;
  double score_decay_;
  Records all_records_, one_records_;
  uint32_t head_dim_ = 0, v_dim_ = 0;

  std::mutex mutex_;  // of all below but what is the carrier's thread's
  std::condition_variable moved_;
  Table table_{kName};
  std::optional<sdk::DeviceFrames> frames_;
  std::vector<Layer> layers_;
  uint64_t used_bytes_ = 0;                        // frames
  uint64_t n_opened_ = 0;                          // blocks, below
  uint64_t tokens_leased_ = 0, tokens_found_ = 0;  // the latter in main memory, when asked for
  uint64_t bytes_up_ = 0, bytes_down_ = 0, n_up_ = 0, nanos_up_ = 0;
  bool stays_told_ = false;

  cuda::Stream stream_;  // the thread's, as all below
  std::vector<std::byte> staging_;
  sdk::DeviceBuffer packed_, sent_;
  std::vector<cuda::TokenRow> rows_;
};

}  // namespace kvasir::tiered
