// Blocks of the test device's storage: names, memory, leases. [kv_head][token][element], K of all
// heads before V, with a gap behind each head: nobody else lays blocks out so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <new>

#include "kernels/convert.h"
#include "plugins/shared/element_type.h"
#include "tests/plugins/device/device_memory.h"
#include "tests/plugins/fakes/fake.h"

namespace kvasir::test {

class DeviceBlocks {
 public:
  DeviceBlocks(const kvasir_geometry& geometry, uint32_t dtype, bool in_host)
      : g_(geometry),
        in_host_(in_host),
        type_(sdk::element_type(dtype)),
        k_bytes_(kernels::row_bytes(type_, g_.head_dim)),
        v_bytes_(kernels::row_bytes(type_, g_.v_dim)) {}
  DeviceBlocks(const DeviceBlocks&) = delete;
  ~DeviceBlocks() {
    for (const auto& [id, block] : blocks_) free(block.data);
  }

  // Finds or, to write, makes it; FAILED when there is none.
  kvasir_lease lease(const kvasir_block_key& key, bool to_write) {
    uint64_t id = find(key);
    if (!id && to_write) {
      const uint64_t heads = key.kv_head == KVASIR_ALL_HEADS ? g_.n_kv_heads : 1;
      void* data = in_host_ ? ::operator new(block_bytes(heads), kAlignment)
                            : DeviceMemory::instance().alloc(block_bytes(heads));
      blocks_[id = ++last_id_] = {key, static_cast<std::byte*>(data), heads, 0};
    }
    kvasir_lease out{};
    out.kv_head = key.kv_head;
    out.state = id ? KVASIR_LEASE_RESIDENT : KVASIR_LEASE_FAILED;
    if (!id) return out;
    Block& block = blocks_.at(id);
    const bool is_slice = key.kv_head != KVASIR_ALL_HEADS && block.n_heads > 1;
    const uint64_t first = is_slice ? key.kv_head * rows_per_head() : 0;
    out.lease = out.handle = id;
    out.k = block.data + first * k_bytes_;
    out.v = block.data + block.n_heads * rows_per_head() * k_bytes_ + first * v_bytes_;
    ++block.n_leases;
    return out;
  }
  void release(uint64_t id) {
    const auto found = blocks_.find(id);
    if (found != blocks_.end() && found->second.n_leases > 0) --found->second.n_leases;
  }
  void drop(const kvasir_block_key& key) {
    const uint64_t id = find(key);
    if (!id) return;
    free(blocks_.at(id).data);
    blocks_.erase(id);
  }
  uint64_t block_bytes(uint64_t n_heads) const {
    return n_heads * rows_per_head() * (k_bytes_ + v_bytes_);
  }
  kvasir_kv_format format(uint32_t dtype, uint32_t mem_kind) const {
    return {sizeof(kvasir_kv_format),
            dtype,
            dtype,
            mem_kind,
            k_bytes_,
            v_bytes_,
            k_bytes_ * rows_per_head(),
            v_bytes_ * rows_per_head(),
            0,
            0};
  }
  uint64_t size() const { return blocks_.size(); }

  // K or V of a token, of a lease that covers head `kv_head`.
  std::byte* vector(const kvasir_lease& lease, bool is_v, uint32_t kv_head, uint64_t token) const {
    check_lease(lease);
    const uint64_t head = lease.kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
    const uint64_t at = head * rows_per_head() + token;
    return static_cast<std::byte*>(is_v ? lease.v : lease.k) + at * vector_bytes(is_v);
  }
  uint64_t vector_bytes(bool is_v) const { return is_v ? v_bytes_ : k_bytes_; }
  kernels::ElementType type() const { return type_; }
  const kvasir_geometry& geometry() const { return g_; }

 private:
  uint64_t rows_per_head() const { return uint64_t{g_.block_size} + 1; }
  static constexpr std::align_val_t kAlignment{64};
  struct Block {
    kvasir_block_key key;
    std::byte* data;
    uint64_t n_heads;
    uint32_t n_leases;
  };
  void free(std::byte* data) const {
    if (in_host_)
      ::operator delete(data, kAlignment);
    else
      DeviceMemory::instance().free(data);
  }
  // seal() may have renamed the block: the handle says which it is.
  uint64_t find(const kvasir_block_key& key) const {
    if (key.handle) return blocks_.contains(key.handle) ? key.handle : 0;
    for (const auto& [id, block] : blocks_)
      if (block.key.hash[0] == key.hash[0] && block.key.hash[1] == key.hash[1]) return id;
    return 0;
  }

  kvasir_geometry g_;
  bool in_host_;
  kernels::ElementType type_;
  uint64_t k_bytes_, v_bytes_, last_id_ = 0;
  std::map<uint64_t, Block> blocks_;
};

}  // namespace kvasir::test
