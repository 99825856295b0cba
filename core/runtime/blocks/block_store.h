// Blocks in storage: creating, appending rows, sealing, making resident, dropping.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/plugin/host.h"
#include "core/plugin/instance.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/sequence/sequence.h"
#include "core/runtime/step/engagement.h"

namespace kvasir {

class BlockStore {
 public:
  BlockStore(Storage& storage, MemoryBridge& bridge, HostServices& services, ThreadPool& pool,
             uint32_t block_size, uint32_t n_kv_heads, uint32_t head_dim, uint32_t v_dim);
  // Hybrid mode: blocks are written to `window`, which must outlive this, and stay there until
  // leave_window(). All calls go to this store, which hands on what concerns the other's blocks.
  void set_window(BlockStore& window);
  bool has_window() const { return window_ != nullptr; }
  // Whether the lease is one of the window's storage; window_format() is its format's index there.
  bool in_window(const kvasir_lease& lease) const {
    return window_ && lease.format >= window_->first_format_;
  }
  uint32_t window_format(const kvasir_lease& lease) const {
    return lease.format - window_->first_format_;
  }

  MemoryBridge& bridge() const { return bridge_; }
  // What lease.format counts in: this storage's, then the window's.
  const std::vector<kvasir_kv_format>& formats() const { return formats_; }
  // Moves the full blocks below `end` from the window's storage to this one and seals them. Rows of
  // equal element types move as bytes, others are rounded once more.
  void leave_window(LayerState& layer, uint32_t layer_index, uint32_t end);

  // Writes rows [kv_len, kv_len + n) of one layer: k [n][n_kv_heads][head_dim] f32, v likewise with
  // v_dim; opens the blocks that are missing. Afterwards leases say n_tokens of the new length.
  void append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const float* k,
              const float* v, uint32_t n);
  // Replaces the rows of tokens at `positions`, ascending, which the list holds: k and v as in
  // append(). A sealed block becomes another one, private to this list, and is sealed again.
  void rewrite(LayerState& layer, uint32_t layer_index, std::span<const uint32_t> positions,
               const float* k, const float* v);
  // The rows at `positions` as f32, in the layout of append().
  void read_tokens(BlockList& layer, std::span<const uint32_t> positions, float* k, float* v);
  // Seals blocks [begin, end), which are full; under the names of their content where they have
  // one.
  void seal(BlockList& layer, uint32_t begin, uint32_t end, const ContentHash& content = {});
  // Guarantees k and v of every listed block until release_step(); waits for transfers. Error when
  // a block is lost. Does nothing for storage with stable leases.
  void make_resident(BlockList& layer, std::span<const uint32_t> blocks);
  // The same for the needed tokens. The bytes of other tokens in those blocks are unspecified.
  void make_resident(BlockList& layer, std::vector<NeededBlock> needed);
  void make_all_resident(BlockList& layer);
  // Starts moving what is not resident; never waits.
  void prefetch(BlockList& layer, std::vector<NeededBlock> needed);
  // False: everything is always resident.
  bool moves() const { return !stable_ || (window_ && window_->moves()); }
  // Adds what was moved and waited for since the last call.
  void count_transfers(Engagement& into);
  void release_step(BlockList& layer);
  // `to` reads the blocks of `from`, the open one too, which only `from` writes: until fork() of
  // the same lists.
  void share(const BlockList& from, BlockList& to) const;
  // Shares sealed blocks and copies the open one, if the last block is.
  void fork(const BlockList& from, BlockList& to, uint32_t layer_index);
  // Keeps the first kv_len tokens; the cut block becomes writable again, private to this sequence.
  void truncate(LayerState& layer, uint32_t layer_index, uint32_t kv_len);
  // Closes up the tokens below `end`: of each kv head those in live[head] stay, in blocks of its
  // own; the blocks that held them are given up.
  void pack(LayerState& layer, uint32_t layer_index, uint32_t end,
            std::vector<std::vector<uint32_t>> live);
  // One more block at the end of the list, ready to be written as far as set_tokens() says.
  void open_block(BlockList& list, uint32_t layer_index, uint32_t block, uint32_t kv_head,
                  bool in_window = false);
  void set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const;
  // The first n_tokens rows of a leased block as bytes: K and then V of every head and token.
  uint64_t bytes_of_tokens(const kvasir_lease& lease, uint32_t n_tokens) const;
  std::vector<std::byte> save_tokens(const kvasir_lease& lease, uint32_t n_tokens) const;
  void load_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                   std::span<const std::byte> from) const;
  // A lease of `rows`, a copy of a leased block's in host memory, in the context's first format,
  // which must be of host memory: for who cannot read the window's storage.
  kvasir_lease copy_to_host(const kvasir_lease& lease, std::vector<std::byte>& rows) const;
  // Whether rows can move between blocks as bytes: every block has the same element types.
  bool can_pack() const;
  void drop(Block& block) noexcept;

 private:
  void create_range(BlockList& layer, uint32_t layer_index, uint32_t begin, uint32_t end,
                    uint32_t kv_head = KVASIR_ALL_HEADS);
  // Row i of k and v goes to position(i).
  template <class Position>
  void write_tokens(const BlockList& layer, const float* k, const float* v, uint64_t n,
                    const Position& position);
  // Where new tokens are written.
  BlockStore& newest() { return window_ ? *window_ : *this; }
  // Whose block it is, by its lease.
  const BlockStore& holder(const kvasir_lease& lease) const {
    return in_window(lease) ? *window_ : *this;
  }
  bool holds(const BlockList& layer, uint32_t block) const {
    return layer.blocks[block] && layer.blocks[block]->store == this;
  }
  // The lease as the storage counts formats.
  kvasir_lease own(kvasir_lease lease) const {
    lease.format -= first_format_;
    return lease;
  }
  // Puts `fresh` in the place of a block, whose lease is given up.
  void replace(BlockList& layer, uint32_t block, const BlockList& fresh);
  // Between blocks of any two stores.
  void carry_over(const kvasir_lease& from, kvasir_lease& to, uint32_t n_tokens) const;
  void reopen(BlockList& layer, uint32_t layer_index, uint32_t block);
  void copy_tokens(const kvasir_lease& from, kvasir_lease& to, uint32_t n_tokens) const;
  void copy(std::span<const kvasir_token_copy> copies) const;
  void copy_on_host(const kvasir_token_copy& copy, uint32_t kv_head) const;
  bool on_host(const kvasir_lease& lease) const;
  template <class Position>
  void write_by_storage(const BlockList& layer, const float* k, const float* v, uint64_t n,
                        const Position& position);
  // One token of a block as f32: k [n_kv_heads][head_dim], v likewise.
  void read_by_storage(const kvasir_lease& lease, uint32_t token, float* k, float* v) const;
  // fn(row, bytes) for K and then V of every head and token of a block in host memory.
  void for_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                  const std::function<void(std::byte*, size_t)>& fn) const;
  kvasir_block_key new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head);
  void wait_for(uint64_t ticket, std::span<const kvasir_block_key> keys);
  // Leaves those that are not leased, or not so far; merges them with what a lease covers.
  void keep_missing(const BlockList& layer, std::vector<NeededBlock>& needed) const;
  std::vector<kvasir_block_key> keys_of(const BlockList& layer,
                                        std::span<const NeededBlock> needed) const;
  // Leases what is there; the others are left in `missing`.
  void lease_present(BlockList& layer, std::vector<NeededBlock>& missing, bool may_lack);
  void take_lease(BlockList& layer, const NeededBlock& needed, kvasir_lease lease);
  // Until the storage has taken and moved them, or is over its budget. Whether to ask on although
  // nothing came.
  bool fetch(const BlockList& layer, std::span<const NeededBlock> missing);

  Storage& storage_;
  MemoryBridge& bridge_;
  MemoryBridge::Buffer k_hold_, v_hold_;
  HostServices& services_;
  ThreadPool& pool_;
  uint32_t block_size_, n_kv_heads_, head_dim_, v_dim_;
  bool stable_;
  uint64_t nonce_ = 0;
  BlockStore* window_ = nullptr;  // hybrid mode, of the context's store
  uint32_t first_format_ = 0;     // of this storage among formats_
  uint32_t n_formats_ = 0;
  std::vector<kvasir_kv_format> formats_;
  std::vector<uint64_t> tickets_;     // speculative prefetches in flight
  std::vector<uint64_t> superseded_;  // leases of this step whose block was leased again for more
  Engagement since_;                  // blocks and waits that are not counted yet
  std::vector<kvasir_tier_count> counted_;
};

}  // namespace kvasir
