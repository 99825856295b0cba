// A storage in host memory for fakes to inherit from: f32, [kv_head][token][element]. A key of one
// head also finds its slice of a block of all heads. Not thread-safe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "tests/plugins/fakes/fake.h"

namespace kvasir::test {

class MemoryStorage {
 public:
  struct Block {
    kvasir_block_key key;      // kv_head: as it was written
    std::vector<float> bytes;  // K of all its heads, then V
    uint64_t last_use = 0;
    uint64_t dropped = 0;  // bit per kv head
    uint32_t n_leases = 0, state = KVASIR_LEASE_RESIDENT;
    bool is_sealed = false;
  };

  // Not stable: bytes move when the last lease is gone.
  explicit MemoryStorage(bool is_stable) : is_stable_(is_stable) {}
  void bind(const kvasir_geometry& geometry) { g_ = geometry; }
  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    out.n_tiers = 1;
    out.block_bytes = geometry.n_kv_heads * head_floats(geometry) * sizeof(float);
  }
  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n) const {
    n = 1;
    if (capacity < 1) throw sdk::Error(KVASIR_ERR_CAPACITY, "one format");
    const uint64_t k = g_.head_dim * sizeof(float), v = g_.v_dim * sizeof(float);
    out[0] = {sizeof out[0],
              KVASIR_DTYPE_F32,
              KVASIR_DTYPE_F32,
              KVASIR_MEM_HOST,
              k,
              v,
              k * g_.block_size,
              v * g_.block_size,
              0,
              0};
  }
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    for (uint64_t i = 0; i < keys.size(); ++i) {
      uint64_t id = find(keys[i]);
      if (!id && mode == KVASIR_ACQUIRE_WRITE) id = make(keys[i]);
      out[i] = {};
      out[i].kv_head = keys[i].kv_head;
      out[i].state = id ? blocks_.at(id).state : KVASIR_LEASE_FAILED;
      if (out[i].state == KVASIR_LEASE_RESIDENT) lease(id, out[i]);
      if (!id || mode != KVASIR_ACQUIRE_WRITE) continue;
      blocks_.at(id).key.n_tokens = keys[i].n_tokens;
      blocks_.at(id).is_sealed = false;
    }
  }
  void release(std::span<const uint64_t> leases) {
    for (const uint64_t id : leases) {
      const auto found = blocks_.find(id);
      if (found == blocks_.end() || found->second.n_leases == 0) continue;
      if (--found->second.n_leases > 0 || is_stable_) continue;
      found->second.bytes = std::vector(found->second.bytes);  // a late reader reads freed memory
    }
  }
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    for (uint64_t i = 0; i < keys.size(); ++i) {
      const auto found = blocks_.find(leases[i].lease);
      if (found == blocks_.end()) sdk::fail_invalid("seal() without a lease");
      found->second.key = keys[i];
      found->second.is_sealed = true;
    }
  }
  // A block of all heads goes when every head was dropped; no tier keeps what nobody holds.
  void drop(const sdk::BlockKeys& keys, uint32_t) {
    const uint64_t all = (uint64_t{1} << g_.n_kv_heads) - 1;
    for (const kvasir_block_key& key : keys) {
      const uint64_t id = find(key);
      if (!id) continue;
      Block& block = blocks_.at(id);
      block.dropped |= key.kv_head == block.key.kv_head ? all : uint64_t{1} << key.kv_head;
      if (block.dropped == all && block.n_leases == 0) blocks_.erase(id);
    }
  }

  uint64_t n_blocks() const { return blocks_.size(); }
  uint64_t n_leases() const {
    uint64_t n = 0;
    for (const auto& [id, block] : blocks_) n += block.n_leases;
    return n;
  }

 protected:
  static uint64_t head_floats(const kvasir_geometry& g) {
    return uint64_t{g.block_size} * (g.head_dim + g.v_dim);
  }
  // 0: it never had it.
  uint64_t find(const kvasir_block_key& key) const {
    const auto names = [&](const kvasir_block_key& of) {
      return of.hash[0] == key.hash[0] && of.hash[1] == key.hash[1] && of.layer == key.layer &&
             of.block == key.block && (of.kv_head == key.kv_head || of.kv_head == KVASIR_ALL_HEADS);
    };
    const auto handle = blocks_.find(key.handle);
    if (handle != blocks_.end() && names(handle->second.key)) return key.handle;
    for (const auto& [id, block] : blocks_)
      if (names(block.key)) return id;
    return 0;
  }

  kvasir_geometry g_{};
  std::map<uint64_t, Block> blocks_;  // by handle, which is the id of its leases too
  uint64_t clock_ = 0;

 private:
  static uint64_t n_heads(const Block& block, const kvasir_geometry& g) {
    return block.key.kv_head == KVASIR_ALL_HEADS ? g.n_kv_heads : 1;
  }
  uint64_t make(const kvasir_block_key& key) {
    Block& block = blocks_[++last_id_];
    block.key = key;
    block.bytes.resize(n_heads(block, g_) * head_floats(g_));
    return last_id_;
  }
  void lease(uint64_t id, kvasir_lease& out) {
    Block& block = blocks_.at(id);
    const bool is_slice = out.kv_head != KVASIR_ALL_HEADS && block.key.kv_head == KVASIR_ALL_HEADS;
    const uint64_t first = is_slice ? uint64_t{out.kv_head} * g_.block_size : 0;
    float* const v = block.bytes.data() + n_heads(block, g_) * g_.block_size * g_.head_dim;
    out.lease = out.handle = id;
    out.k = block.bytes.data() + first * g_.head_dim;
    out.v = v + first * g_.v_dim;
    out.n_tokens = block.key.n_tokens;
    ++block.n_leases;
    block.last_use = ++clock_;
  }

  bool is_stable_;
  uint64_t last_id_ = 0;
};

}  // namespace kvasir::test
