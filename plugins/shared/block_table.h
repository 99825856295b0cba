// The blocks of a storage by name and by handle, the leases on them, and which call is legal when.
// Where bytes lie is the storage's own business: what it keeps of a block is `Bytes`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/host.h>
#include <kvasir/sdk/strided.h>
#include <kvasir/storage.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugins/shared/block_name.h"
#include "plugins/shared/slot_map.h"

namespace kvasir::sdk {

// Not thread-safe. Functions throw sdk::Error with a text that names call, layer and block.
template <class Bytes>
class BlockTable {
 public:
  struct Block {
    Bytes bytes{};
    BlockName name{};
    uint32_t n_leases = 0;
    uint32_t n_holders = 1;  // seals that came to share it: each drops it once
    bool written = false;    // a WRITE lease is out
    bool sealed = false;
  };

  explicit BlockTable(const char* storage) : storage_(storage) {}

  void bind(const kvasir_geometry& geometry) {
    n_layers_ = geometry.n_layers;
    n_kv_heads_ = geometry.n_kv_heads;
    block_size_ = geometry.block_size;
  }

  // Null when there is none. Valid until the next add().
  Block* block(uint64_t handle) { return blocks_.find(handle); }

  // The block's handle, 0 when there is none of that name. A handle must fit its key. With `slices`
  // a key of one head also finds the block of all heads.
  uint64_t find(const char* function, const kvasir_block_key& key, bool slices) {
    check_key(function, key);
    if (key.handle == 0) {
      auto found = index_.find(name_of(key));
      if (found == index_.end() && slices) found = index_.find(whole_of(key));
      return found == index_.end() ? 0 : found->second;
    }
    const Block* block = blocks_.find(key.handle);
    const bool fits =
        block && (block->name == name_of(key) || (slices && block->name == whole_of(key)));
    if (!fits) {
      fail_invalid(
          where(function, key) + "handle " + std::to_string(key.handle) +
          (block ? " belongs to a block with another key" : " names no block; dropped before?"));
    }
    return key.handle;
  }

  // Handle of a block that may be leased for writing, 0 when it is to be created.
  uint64_t find_for_writing(const kvasir_block_key& key) {
    const uint64_t handle = find("acquire", key, false);
    if (handle == 0) return 0;
    Block& block = *blocks_.find(handle);
    if (block.written) fail_invalid(where("acquire", key) + "a WRITE lease is out already");
    if (block.n_holders > 1) {
      fail_invalid(where("acquire", key) + std::to_string(block.n_holders) +
                   " holders share the block; write into a copy");
    }
    return handle;
  }

  // Nothing is added when it throws.
  uint64_t add(const kvasir_block_key& key, Bytes bytes) {
    const uint64_t handle = blocks_.add({std::move(bytes), name_of(key)});
    try {
      index_.emplace(name_of(key), handle);
    } catch (...) {
      blocks_.remove(handle);
      throw;
    }
    return handle;
  }

  // A lease but for its pointers.
  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = no_lease(key, KVASIR_LEASE_RESIDENT);
    out.lease = leases_.add({handle, write});
    Block& block = *blocks_.find(handle);
    ++block.n_leases;
    block.written |= write;
    block.sealed = block.sealed && !write;
    out.handle = handle;
    out.n_tokens = key.n_tokens;
    return out;
  }
  static kvasir_lease no_lease(const kvasir_block_key& key, uint32_t state) {
    kvasir_lease out{};
    out.kv_head = key.kv_head;
    out.state = state;
    return out;
  }
  // Heads to skip in a block of all heads that a key of one head reads.
  uint64_t first_head(const kvasir_block_key& key, uint64_t handle) {
    return blocks_.find(handle)->name.kv_head == key.kv_head ? 0 : key.kv_head;
  }

  // The block it was on, 0 when no such lease is out.
  uint64_t end_lease(uint64_t id) noexcept {
    const Lease* found = leases_.find(id);
    if (!found) return 0;
    const uint64_t handle = found->block;
    Block& block = *blocks_.find(handle);  // a leased block is not dropped
    --block.n_leases;
    if (found->write) block.written = false;
    leases_.remove(id);
    return handle;
  }

  // Blocks take their new names, leases become ones for reading; all or none. Where a sealed block
  // has the name already, and can_share(its handle), the lease is moved to it: the caller refreshes
  // the pointers. Returns the handles of the blocks that lost their lease so.
  template <class CanShare>
  std::vector<uint64_t> seal(const Strided<const kvasir_block_key>& keys,
                             const Strided<kvasir_lease>& leases, const CanShare& can_share) {
    std::vector<uint64_t> given_up;
    given_up.reserve(keys.size());
    for (uint64_t i = 0; i < keys.size(); ++i) check_seal(keys[i], leases[i]);
    for (uint64_t i = 0; i < keys.size(); ++i) {
      Lease& lease = *leases_.find(leases[i].lease);
      lease.write = false;
      Block& block = *blocks_.find(lease.block);
      block.written = false;
      const uint64_t twin = block.n_leases == 1 ? sealed_twin(lease.block, name_of(keys[i])) : 0;
      if (twin != 0 && can_share(twin)) {
        --block.n_leases;
        given_up.push_back(lease.block);
        lease.block = twin;
        ++blocks_.find(twin)->n_leases;
        ++blocks_.find(twin)->n_holders;
      } else {
        rename(lease.block, name_of(keys[i]));
        block.sealed = true;
      }
      leases[i].handle = lease.block;
    }
    return given_up;
  }

  // Handle of a block that may be dropped.
  uint64_t check_drop(const kvasir_block_key& key) {
    const uint64_t handle = find("drop", key, true);
    if (handle == 0) fail_invalid(where("drop", key) + "no such block; dropped before?");
    const Block& block = *blocks_.find(handle);
    if (block.n_leases != 0 && block.n_holders == 1 && block.name.kv_head == key.kv_head) {
      fail_invalid(where("drop", key) + std::to_string(block.n_leases) +
                   " lease(s) are out; release them first");
    }
    return handle;
  }

  // Handle of the block that goes with it, for remove(); 0 when holders or heads of it are left: a
  // slice takes no bytes with it. A holder is gone when it dropped the block, or every head of it.
  uint64_t drop(const kvasir_block_key& key) {
    const uint64_t handle = check_drop(key);
    Block& block = *blocks_.find(handle);
    if (block.name.kv_head == key.kv_head) {  // with the heads that this holder has dropped so far
      if (const auto lost = lost_heads_.find(handle); lost != lost_heads_.end())
        for (uint32_t& n : lost->second) n -= n > 0;
      return holder_gone(block) ? handle : 0;
    }
    std::vector<uint32_t>& lost = lost_heads_[handle];
    lost.resize(n_kv_heads_);
    if (lost[key.kv_head] == block.n_holders)
      fail_invalid(where("drop", key) + "this head of the block was dropped before");
    const bool completes = lost[key.kv_head] == 0 && std::count(lost.begin(), lost.end(), 0u) == 1;
    if (completes && block.n_holders == 1 && block.n_leases != 0) {
      fail_invalid(where("drop", key) + "it is the block's last head, and " +
                   std::to_string(block.n_leases) + " lease(s) are out");
    }
    ++lost[key.kv_head];
    if (!completes) return 0;
    for (uint32_t& n : lost) --n;
    return holder_gone(block) ? handle : 0;
  }

  void remove(uint64_t handle) noexcept {
    forget_name(blocks_.find(handle)->name, handle);
    lost_heads_.erase(handle);
    blocks_.remove(handle);
  }

  // Of a block, a lease on it, and its entry in the index (node, bucket, malloc's header).
  static constexpr uint64_t bytes_per_block() {
    return SlotMap<Block>::bytes_per_value() + SlotMap<Lease>::bytes_per_value() +
           sizeof(std::pair<BlockName, uint64_t>) + 40;
  }

  std::string where(const char* function, const kvasir_block_key& key) const {
    return sdk::where(storage_, function, key);
  }

 private:
  struct Lease {
    uint64_t block = 0;
    bool write = false;
  };

  void check_key(const char* function, const kvasir_block_key& key) const {
    if (key.layer >= n_layers_ || key.n_tokens > block_size_ ||
        (key.kv_head != KVASIR_ALL_HEADS && key.kv_head >= n_kv_heads_)) {
      fail_invalid(where(function, key) + "the run has " + std::to_string(n_layers_) + " layers, " +
                   std::to_string(n_kv_heads_) + " kv heads and blocks of " +
                   std::to_string(block_size_) + " tokens (key: " + std::to_string(key.n_tokens) +
                   ")");
    }
  }

  void check_seal(const kvasir_block_key& key, const kvasir_lease& out) {
    check_key("seal", key);
    const Lease* found = leases_.find(out.lease);
    if (!found || !found->write) {
      fail_invalid(where("seal", key) + "lease " + std::to_string(out.lease) +
                   " is not a WRITE lease");
    }
    const BlockName& named = blocks_.find(found->block)->name;
    if (named.layer != key.layer || named.block != key.block || named.kv_head != key.kv_head) {
      fail_invalid(where("seal", key) + "the lease is on layer " + std::to_string(named.layer) +
                   ", block " + std::to_string(named.block));
    }
  }

  static bool holder_gone(Block& block) { return --block.n_holders == 0; }

  // Another sealed block of that name, 0 when there is none.
  uint64_t sealed_twin(uint64_t handle, const BlockName& name) {
    const auto [begin, end] = index_.equal_range(name);
    for (auto it = begin; it != end; ++it)
      if (it->second != handle && blocks_.find(it->second)->sealed) return it->second;
    return 0;
  }

  // Two sealed blocks may bear one name (equal content that could not be shared): look-up finds
  // either.
  void forget_name(const BlockName& name, uint64_t handle) noexcept {
    const auto [begin, end] = index_.equal_range(name);
    for (auto it = begin; it != end; ++it) {
      if (it->second == handle) {
        index_.erase(it);
        return;
      }
    }
  }

  void rename(uint64_t handle, const BlockName& name) {
    Block& block = *blocks_.find(handle);
    if (block.name == name) return;
    index_.emplace(name, handle);
    forget_name(block.name, handle);
    block.name = name;
  }

  const char* storage_;
  uint32_t n_layers_ = 0;
  uint32_t n_kv_heads_ = 0;
  uint32_t block_size_ = 0;
  SlotMap<Block> blocks_;
  SlotMap<Lease> leases_;
  std::unordered_multimap<BlockName, uint64_t, BlockNameHash> index_;
  // Of blocks with dropped slices, per head: by how many of the holders that are left.
  std::unordered_map<uint64_t, std::vector<uint32_t>> lost_heads_;
};

// What release() and drop() of every storage do. `store`: as below; drops are checked before the
// first one.
template <class Store>
void release_all(Store& store, const Host& host, std::span<const uint64_t> leases) {
  for (const uint64_t lease : leases) {
    if (lease != 0 && !store.give_back(lease))
      host.log(KVASIR_LOG_WARN,
               "release: lease " + std::to_string(lease) + " is not out; released twice?");
  }
}
template <class Store, class Bytes>
void drop_all(Store& store, BlockTable<Bytes>& table, const char* storage,
              const Strided<const kvasir_block_key>& keys, uint32_t mode) {
  if (mode != KVASIR_DROP_UNREF && mode != KVASIR_DROP_FORGET) {
    fail_invalid(std::string(storage) + ": drop: mode " + std::to_string(mode) +
                 " is not UNREF or FORGET");
  }
  for (const kvasir_block_key& key : keys) table.check_drop(key);
  for (const kvasir_block_key& key : keys)
    if (const uint64_t handle = table.drop(key)) store.remove(handle);
}
inline void write_format(const char* storage, const kvasir_kv_format& format, kvasir_kv_format* out,
                         uint32_t capacity, uint32_t& n_formats) {
  n_formats = 1;
  if (capacity < 1)
    throw Error(KVASIR_ERR_CAPACITY, std::string(storage) + ": formats needs space for 1");
  out[0] = format;
}

// Leases for all keys or for none. `store` has read_lease(key), write_lease(key, created), which
// appends the handle of a block it makes, and give_back(lease), remove(handle).
template <class Store>
void acquire_all(Store& store, const char* storage, const Strided<const kvasir_block_key>& keys,
                 uint32_t mode, const Strided<kvasir_lease>& out) {
  if (mode != KVASIR_ACQUIRE_READ && mode != KVASIR_ACQUIRE_WRITE) {
    fail_invalid(std::string(storage) + ": acquire: mode " + std::to_string(mode) +
                 " is not READ or WRITE");
  }
  std::vector<uint64_t> leased, created;
  leased.reserve(keys.size());
  if (mode == KVASIR_ACQUIRE_WRITE) created.reserve(keys.size());
  try {
    for (uint64_t i = 0; i < keys.size(); ++i) {
      out[i] = mode == KVASIR_ACQUIRE_WRITE ? store.write_lease(keys[i], created)
                                            : store.read_lease(keys[i]);
      leased.push_back(out[i].lease);
    }
  } catch (...) {
    for (const uint64_t lease : leased) store.give_back(lease);
    for (const uint64_t handle : created) store.remove(handle);
    throw;
  }
}

}  // namespace kvasir::sdk
