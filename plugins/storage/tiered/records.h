// How a block lies in the file: one record per kv head and token, [kv_head][token], of its K, its V
// and a checksum of both. So any token can be read alone and checked alone, and no checksum takes
// memory. As many records as one call moves make a piece; pieces begin where a call may.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plugins/shared/kv_layout.h"

namespace kvasir::tiered {

class Records {
 public:
  Records() = default;
  // Of blocks of n_heads heads that lie in memory as `layout` says, in one part. Pieces of at most
  // piece_bytes, or of one record, begin at multiples of `alignment`.
  Records(const sdk::KvLayout& layout, uint32_t n_heads, uint32_t block_size, uint64_t piece_bytes,
          uint64_t alignment)
      : k_bytes_(layout.format.k_token_stride),
        v_bytes_(layout.format.v_token_stride),
        v_begin_(layout.k_bytes),
        n_(n_heads * block_size),
        block_size_(block_size),
        alignment_(alignment),
        per_piece_(
            static_cast<uint32_t>(std::clamp<uint64_t>(piece_bytes / record_bytes(), 1, n_))) {}

  uint32_t size() const { return n_; }  // of a block
  uint32_t block_size() const { return block_size_; }
  uint64_t data_bytes() const { return k_bytes_ + v_bytes_; }
  uint64_t record_bytes() const { return data_bytes() + sizeof(uint64_t); }
  // Of a block in the file.
  uint64_t block_bytes() const {
    const uint32_t n_full = (n_ - 1) / per_piece_;
    return n_full * piece_bytes() + round_up((n_ - n_full * per_piece_) * record_bytes());
  }
  uint64_t piece_bytes() const { return round_up(per_piece_ * record_bytes()); }
  uint32_t piece_end(uint32_t i) const {  // the first record behind the piece of record i
    return std::min(n_, (i / per_piece_ + 1) * per_piece_);
  }
  // Where record i begins, from the block's first byte on.
  uint64_t offset(uint32_t i) const {
    return i / per_piece_ * piece_bytes() + i % per_piece_ * record_bytes();
  }

  // Records [begin, end), one behind the other. seed: different for every writing of every block,
  // so that a record which another writing left in that place is not taken for this one.
  void pack(const std::byte* block, uint64_t seed, uint32_t begin, uint32_t end,
            std::byte* to) const {
    for (uint32_t i = begin; i < end; ++i, to += record_bytes()) {
      std::memcpy(to, block + i * k_bytes_, k_bytes_);
      std::memcpy(to + k_bytes_, block + v_begin_ + i * v_bytes_, v_bytes_);
      const uint64_t sum = checksum(to, seed, i);
      std::memcpy(to + data_bytes(), &sum, sizeof sum);
    }
  }
  bool intact(const std::byte* record, uint64_t seed, uint32_t i) const {
    uint64_t sum = 0;
    std::memcpy(&sum, record + data_bytes(), sizeof sum);
    return sum == checksum(record, seed, i);
  }
  void unpack(const std::byte* record, uint32_t i, std::byte* block) const {
    std::memcpy(block + i * k_bytes_, record, k_bytes_);
    std::memcpy(block + v_begin_ + i * v_bytes_, record + k_bytes_, v_bytes_);
  }
  // Where K and V of a record lie in memory.
  struct Place {
    uint64_t k_begin, k_end, v_begin, v_end;
  };
  Place place(uint32_t i) const {
    return {i * k_bytes_, (i + 1) * k_bytes_, v_begin_ + i * v_bytes_,
            v_begin_ + (i + 1) * v_bytes_};
  }

 private:
  uint64_t checksum(const std::byte* record, uint64_t seed, uint32_t i) const {
    return XXH3_64bits_withSeed(record, data_bytes(), (seed << 32) + i);
  }

  uint64_t round_up(uint64_t bytes) const {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }

  uint64_t k_bytes_ = 0, v_bytes_ = 0, v_begin_ = 0;
  uint32_t n_ = 0, block_size_ = 0;
  uint64_t alignment_ = 1;
  uint32_t per_piece_ = 1;
};

}  // namespace kvasir::tiered
