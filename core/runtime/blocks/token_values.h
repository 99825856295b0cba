// K and V of tokens as f32, written to and read from leased blocks: by the host where it reaches
// their memory, else by the storage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <span>

#include "core/platform/thread_pool.h"
#include "core/runtime/blocks/block.h"
#include "core/runtime/blocks/block_access.h"
#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {

// K [n][n_kv_heads][head_dim] and V [n][n_kv_heads][v_dim] of n tokens, f32: on the host, or on the
// device of a storage all of whose blocks are there.
struct KvRows {
  const float *k = nullptr, *v = nullptr;
  bool on_device = false;
};

class TokenValues {
 public:
  // Both must outlive this.
  TokenValues(const BlockAccess& access, ThreadPool& pool) : access_(access), pool_(pool) {}

  // Writes n tokens. Token i goes to position first + i. The blocks must be writable.
  void write(const BlockList& list, uint32_t first, uint64_t n, const KvRows& rows);
  // The same; token i goes to positions[i], ascending.
  void write(const BlockList& list, std::span<const uint32_t> positions, const KvRows& rows);
  // Reads token `token` of a leased block of this storage: k [n_kv_heads][head_dim], v
  // [n_kv_heads][v_dim].
  void read(const kvasir_lease& lease, uint32_t token, float* k, float* v) const;

 private:
  template <class Position>
  void write_tokens(const BlockList& list, const KvRows& rows, uint64_t n,
                    const Position& position);
  template <class Position>
  void write_on_host(const BlockList& list, const KvRows& rows, uint64_t n,
                     const Position& position);
  template <class Position>
  void write_by_storage(const BlockList& list, const KvRows& rows, uint64_t n,
                        const Position& position);
  // What to give the storage for n tokens [n][n_kv_heads][dim] of the rows.
  kvasir_view to_storage(const float* rows, bool on_device, uint64_t n, uint64_t dim,
                         MemoryBridge::Buffer& hold);
  void read_by_storage(const kvasir_lease& lease, uint32_t token, float* k, float* v) const;

  const BlockAccess& access_;
  ThreadPool& pool_;
  MemoryBridge::Buffer k_hold_, v_hold_;  // K and V on their way to the storage
};

}  // namespace kvasir
