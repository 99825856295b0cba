// The blocks of one storage: they are created, written, sealed, shared, made resident, replaced and
// dropped here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/plugin/host.h"
#include "core/plugin/instance.h"
#include "core/runtime/blocks/block.h"
#include "core/runtime/blocks/block_access.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/blocks/residency.h"
#include "core/runtime/blocks/token_bytes.h"
#include "core/runtime/blocks/token_values.h"
#include "core/runtime/sequence/sequence.h"
#include "core/runtime/step/engagement.h"

namespace kvasir {

// Calls throw PluginError when the storage breaks its contract, and Error(kResource) when it has no
// space. Calls over several lists are one call of the storage each: what a layer costs does not
// depend on how many sequences are in the step. They throw what is wrong with any of the lists; the
// same call for each list alone says which.
class BlockStore {
 public:
  // block_size in tokens, head_dim and v_dim in elements. What is referred to must outlive this,
  // and this all blocks.
  BlockStore(Storage& storage, MemoryBridge& bridge, HostServices& services, ThreadPool& pool,
             uint32_t block_size, uint32_t n_kv_heads, uint32_t head_dim, uint32_t v_dim);
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // How long transfers into memory are waited for: the longest that was asked for.
  void wait_at_least(std::chrono::seconds timeout) {
    residency_.wait_at_least(timeout);
    if (window_) window_->wait_at_least(timeout);
  }
  // Hybrid mode: blocks are written to `window`, which must outlive this, and stay there until
  // leave_window(). All calls go to this store; it calls `window` for blocks that are there.
  void set_window(BlockStore& window);
  bool has_window() const { return window_ != nullptr; }
  // Whether the lease is one of the window's storage; window_format() is its format's index there.
  bool in_window(const kvasir_lease& lease) const {
    return window_ && lease.format >= window_->access_.first_format;
  }
  uint32_t window_format(const kvasir_lease& lease) const {
    return window_->access_.as_storage_counts(lease).format;
  }
  uint32_t first_window_format() const { return window_->access_.first_format; }
  struct Leaving {
    LayerState* layer;
    uint32_t layer_index;
    uint32_t end;  // blocks
  };
  // Moves the full blocks below `end` from the window's storage to this one and seals them. Where
  // element types differ, values are rounded once more. Nothing has moved when it throws.
  void leave_window(std::span<const Leaving> all);

  MemoryBridge& bridge() const { return access_.bridge; }
  // What lease.format counts in: the formats of this storage, then the window's.
  const std::vector<kvasir_kv_format>& formats() const { return access_.formats; }

  struct Growth {
    BlockList* list;
    uint32_t layer_index;
    uint32_t n_tokens;  // that the list is to hold
  };
  // Opens the blocks that append() will need. None is opened when it throws.
  void open_blocks(std::span<const Growth> all);
  // Writes tokens [kv_len, kv_len + n) of one layer; opens the blocks that are missing. Afterwards
  // leases say n_tokens of the new length.
  void append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const KvRows& rows,
              uint32_t n);
  // Writes the tokens at `positions`, ascending, which the list holds, anew. A sealed block becomes
  // another one, private to this list, and is sealed again.
  void rewrite(LayerState& layer, uint32_t layer_index, std::span<const uint32_t> positions,
               const KvRows& rows);
  // Reads the tokens at `positions` as f32, in the layout of KvRows. Returns how many blocks were
  // not in memory.
  uint64_t read_tokens(BlockList& layer, std::span<const uint32_t> positions, float* k, float* v);
  struct Full {
    BlockList* list;
    uint32_t begin, end;                   // blocks, all of one storage
    const ContentHash* content = nullptr;  // may know names for them; not owned
  };
  // Adds blocks of these names, from the first on, to an empty list, as many as the storage has
  // kept in a row (Storage::restore); returns how many.
  uint32_t restore(BlockList& list, uint32_t layer_index, std::span<const Hash128> names);
  // Seals blocks [begin, end), which are full; under the names of their content where they have
  // one. Those that are sealed stay as they are.
  void seal(std::span<const Full> all);

  // Residency::make_resident(), which returns how many blocks were not in memory; does nothing for
  // storage with stable leases.
  uint64_t make_resident(std::span<const ListNeeds> needs);
  // The listed blocks; all of them.
  uint64_t make_resident(BlockList& list, std::span<const uint32_t> blocks);
  void make_all_resident(BlockList& list);
  ListNeeds needs_of(BlockList& list, std::span<const uint32_t> blocks) const;
  ListNeeds needs_all(BlockList& list) const;
  // Starts to move what is not resident; never waits.
  void prefetch(std::span<const ListNeeds> needs);
  bool takes_ahead() const { return residency_.takes_ahead(); }
  // False: everything is always resident.
  bool moves() const { return residency_.moves() || (window_ && window_->moves()); }
  // KVASIR_HEAT_*: what the storage, in hybrid mode the context's, orders blocks by.
  uint32_t heat_wanted() const { return access_.storage.heat_wanted(); }
  struct Heat {
    const BlockList* list;
    uint32_t block;
    float value;
  };
  // Of one layer, as kvasir.block-heat/1 says; leaves out blocks that are not sealed.
  void tell_heat(std::span<const Heat> all);
  // Adds what was moved and waited for since the last call.
  void count_transfers(Engagement& into);
  void release_step(BlockList& layer);

  // `to` reads the blocks of `from` until fork() of the same lists: the open one too, which only
  // `from` writes.
  void share(const BlockList& from, BlockList& to) const;
  // Shares sealed blocks and copies the open one, if the last block is.
  void fork(const BlockList& from, BlockList& to, uint32_t layer_index);
  // Keeps the first kv_len tokens; the cut block becomes writable again, private to this sequence.
  void truncate(LayerState& layer, uint32_t layer_index, uint32_t kv_len);
  struct Packing {
    LayerState* layer;
    uint32_t layer_index;
    uint32_t end;                             // tokens, a multiple of block_size
    std::vector<std::vector<uint32_t>> live;  // [kv_head] positions below `end`, ascending
  };
  // Packs the tokens below `end`: of each kv head, those that live move to blocks of that head, the
  // blocks that held them are given up. Requires can_pack(). Nothing is packed when it throws.
  void pack(std::span<const Packing> all);
  // Whether tokens can move between blocks as bytes: every block of a storage has the same element
  // types.
  bool can_pack() const;

  // One more block at the end of the list, ready to be written as far as set_tokens() says.
  void open_block(BlockList& list, uint32_t layer_index, uint32_t block, uint32_t kv_head,
                  bool in_window = false);
  void set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const;
  // Tokens [0, n_tokens) of a leased block as bytes: K and then V of every kv head and token.
  uint64_t bytes_of_tokens(const kvasir_lease& lease, uint32_t n_tokens) const;
  std::vector<std::byte> save_tokens(const kvasir_lease& lease, uint32_t n_tokens) const;
  void load_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                   std::span<const std::byte> from) const;
  // Copies tokens of leased blocks to host memory, for plugins that cannot read them where they
  // lie, and returns a lease of each block's copy, in `memory`, which it allocates; the rest of a
  // copy is undefined, and k and v are null where no token is copied. It has the format of
  // copied_formats(); in hybrid mode with a context in host memory formats()[0], whatever it had.
  std::vector<kvasir_lease> copy_to_host(std::span<const kvasir_token_span> tokens,
                                         std::unique_ptr<std::byte[]>& memory) const;
  // Gives a block back to the storage; logs what fails.
  void drop(Block& block) noexcept;

  // While it lives, what lists let go is kept, of this store and the window's: one call at its end
  // releases the leases, and one drops the blocks.
  class LetGoTogether {
   public:
    explicit LetGoTogether(BlockStore& store) : store_(store) { store_.keep_let_go(1); }
    ~LetGoTogether() { store_.keep_let_go(-1); }
    LetGoTogether(const LetGoTogether&) = delete;
    LetGoTogether& operator=(const LetGoTogether&) = delete;

   private:
    BlockStore& store_;
  };

 private:
  // Blocks [begin, end) at the end of a list.
  struct NewBlocks {
    BlockList* list;
    uint32_t layer_index;
    uint32_t begin, end;
    uint32_t kv_head = KVASIR_ALL_HEADS;
  };
  // All or none.
  void create(std::span<const NewBlocks> all);
  // Block `block` at the end of a list that is otherwise empty.
  BlockList create_one(uint32_t layer_index, uint32_t block);
  kvasir_block_key new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head) const;
  // Where new tokens are written.
  BlockStore& newest() { return window_ ? *window_ : *this; }
  // Whose block it is, by its lease.
  const BlockStore& holder(const kvasir_lease& lease) const {
    return in_window(lease) ? *window_ : *this;
  }
  // Puts block `block` of `fresh` in the place of that of `layer`, whose lease is given up.
  void replace(BlockList& layer, uint32_t block, const BlockList& fresh);
  // Puts a private copy, ready to be written, in the place of a sealed block, which may be shared.
  void reopen(BlockList& layer, uint32_t layer_index, uint32_t block);
  // Between blocks of equal element types, or of this store and the window's.
  void copy_tokens(const kvasir_lease& from, const kvasir_lease& to, uint32_t n_tokens) const;
  void lease_for_packing(std::span<const Packing> all);
  std::vector<PackedHead> open_packed(std::span<const Packing> all);  // [packing][kv_head]

  // Adds to how many LetGoTogether live; with the last one, what they kept goes.
  void keep_let_go(int n) noexcept;
  void drop_all(const std::vector<kvasir_block_key>& keys) noexcept;

  BlockAccess access_, copies_;  // copies_: blocks of copy_to_host()
  TokenValues values_;
  TokenBytes bytes_;
  Residency residency_;
  HostServices& services_;
  uint64_t nonce_;
  int n_keep_ = 0;                              // LetGoTogether that live
  std::vector<kvasir_block_key> dropped_keys_;  // of blocks that they keep
  BlockStore* window_ = nullptr;                // hybrid mode, of the context's store
};

}  // namespace kvasir
