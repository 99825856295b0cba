// What blocks held when they were sealed or leased, as checksums: whoever changes them is found
// out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace kvasir {

class Instance;

// What it takes to find the rows of a lease.
struct BlockShape {
  uint32_t n_kv_heads = 0, head_dim = 0, v_dim = 0;
};

// Of K and V of tokens [0, n_tokens); 0: the host cannot read them.
uint64_t sum_of(const kvasir_lease& lease, uint32_t n_tokens, const kvasir_kv_format& format,
                const BlockShape& shape);

// Of all storages of a process. Any thread.
class BlockSums {
 public:
  // The sealed block holds what it held then, in every lease of the whole of it that follows.
  void seal(const Instance& storage, const kvasir_block_key& key, const kvasir_lease& lease,
            uint64_t sum);
  // "" when the block is as it was sealed, or nothing is known of it. The lease is remembered.
  std::string check_lease(const Instance& storage, const kvasir_block_key& key,
                          const kvasir_lease& lease, uint64_t sum);
  // The block is gone, or what lies at this address may change from now on.
  void forget(const Instance& storage, const kvasir_block_key& key);
  void forget_at(const void* k);
  void release(const Instance& storage, uint64_t lease);
  // What was known of K and V at this address: the sum of so many tokens, or nothing.
  struct Known {
    uint64_t sum = 0;
    uint32_t n_tokens = 0, layer = 0, block = 0;
    std::string storage{};  // its id
  };
  Known known_at(const void* k) const;

 private:
  using Key = std::tuple<const Instance*, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t>;
  static Key key_of(const Instance& storage, const kvasir_block_key& key);
  void lease(const Instance& storage, const kvasir_block_key& key, const kvasir_lease& lease,
             uint64_t sum);

  struct Sealed {
    uint64_t sum;
    uint32_t n_tokens, format;
    const void* k;  // of its last lease
  };
  mutable std::mutex mutex_;
  std::map<Key, Sealed> sealed_;
  std::map<const void*, Known> leased_;                                     // by the address of K
  std::map<std::pair<const Instance*, uint64_t>, const void*> address_of_;  // storage and lease
};

}  // namespace kvasir
