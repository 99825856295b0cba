// What storages share that have one tier and never move a block: from acquire() to drop() it stays
// where it was created. For a class
//
//   class Mine : public sdk::ResidentBlocks<Mine> {
//    public:
//     const sdk::KvLayout& layout_of(uint32_t kv_head);   // KVASIR_ALL_HEADS, or one head
//     std::byte* allocate(const kvasir_block_key& key);         // memory of that layout; throws
//     void free(uint32_t kv_head, std::byte* data) noexcept;
//   };
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/plugin.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"

namespace kvasir::sdk {

template <class Storage>
class ResidentBlocks {
 public:
  // name: in messages. max_bytes: of blocks; 0: no limit.
  ResidentBlocks(const Host& host, const char* name, uint64_t max_bytes)
      : host_(host), name_(name), max_bytes_(max_bytes), table_(name) {}

  void acquire(const BlockKeys& keys, uint32_t mode, const Leases& out) {
    const std::lock_guard lock(mutex_);
    acquire_all(*this, name_, keys, mode, out);
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    release_all(*this, host_, leases);
  }

  // Nothing is quantised or moved; equal blocks are kept once.
  void seal(const BlockKeys& keys, const Leases& leases) {
    const std::lock_guard lock(mutex_);
    const auto given_up = table_.seal(keys, leases, [](uint64_t) { return true; });
    if (given_up.empty()) return;
    for (uint64_t i = 0; i < keys.size(); ++i) point(leases[i], keys[i], leases[i].handle);
    for (const uint64_t handle : given_up) remove(handle);
  }

  // There is no other tier: UNREF and FORGET both free the bytes.
  void drop(const BlockKeys& keys, uint32_t mode) {
    const std::lock_guard lock(mutex_);
    drop_all(*this, table_, name_, keys, mode);
  }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    return lease(key, handle, false);
  }
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = table_.find_for_writing(key);
    if (handle == 0) created.push_back(handle = create(key));
    return lease(key, handle, true);
  }
  bool give_back(uint64_t lease) noexcept { return table_.end_lease(lease) != 0; }
  void remove(uint64_t handle) noexcept {
    const auto& block = *table_.block(handle);
    storage().free(block.name.kv_head, block.bytes);
    used_bytes_ -= storage().layout_of(block.name.kv_head).block_bytes();
    table_.remove(handle);
  }

 protected:
  const Host& host() const { return host_; }
  std::mutex& mutex() { return mutex_; }  // drop() may come from any thread
  BlockTable<std::byte*>& table() { return table_; }
  // Bytes that max_bytes leaves; UINT64_MAX without a limit.
  uint64_t left_bytes() const { return max_bytes_ == 0 ? UINT64_MAX : max_bytes_ - used_bytes_; }

 private:
  Storage& storage() { return static_cast<Storage&>(*this); }

  uint64_t create(const kvasir_block_key& key) {
    const uint64_t bytes = storage().layout_of(key.kv_head).block_bytes();
    if (bytes > left_bytes()) {
      throw Error(KVASIR_ERR_OUT_OF_MEMORY,
                  table_.where("acquire", key) + std::to_string(used_bytes_) +
                      " bytes are in use and max_bytes = " + std::to_string(max_bytes_) +
                      " leaves no space for " + std::to_string(bytes) + " more");
    }
    std::byte* data = storage().allocate(key);
    uint64_t handle = 0;
    try {
      handle = table_.add(key, data);
    } catch (...) {
      storage().free(key.kv_head, data);
      throw;
    }
    used_bytes_ += bytes;
    return handle;
  }

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = table_.lease(key, handle, write);
    point(out, key, handle);
    return out;
  }
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
    const auto& block = *table_.block(handle);
    const KvLayout& layout = storage().layout_of(block.name.kv_head);
    const uint64_t skip = table_.first_head(key, handle);
    lease.k = block.bytes + skip * layout.format.k_head_stride;
    lease.v = block.bytes + layout.k_bytes + skip * layout.format.v_head_stride;
  }

  Host host_;
  const char* name_;
  uint64_t max_bytes_;
  std::mutex mutex_;
  BlockTable<std::byte*> table_;
  uint64_t used_bytes_ = 0;
};

}  // namespace kvasir::sdk
