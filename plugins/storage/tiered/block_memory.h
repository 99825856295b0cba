// What of a block is in memory: nothing, the tokens that were needed, or all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "plugins/storage/tiered/records.h"
#include "plugins/storage/tiered/token_set.h"

namespace kvasir::tiered {

inline constexpr uint64_t kPage = 4096;  // of memory

// Bytes of a block. Shared, so that they stay while a thread reads or writes them and the block is
// dropped. Mapped, so that what leaves memory leaves it: the heap would keep it for later.
using Memory = std::shared_ptr<std::byte>;
Memory allocate(uint64_t bytes);  // may throw bad_alloc

// Mappings that blocks have left, for the blocks that come next: a page that is new to the process
// costs as much as reading it. For any thread. What is taken may outlive it.
class SpareMemory {
 public:
  // At most so many bytes are kept.
  void keep_at_most(uint64_t bytes);
  struct Taken {
    Memory memory;
    bool is_new;  // no page of it was touched
  };
  Taken take(uint64_t bytes);  // may throw bad_alloc

 private:
  struct Kept {
    std::mutex mutex;
    uint64_t most_bytes = 0, bytes = 0;
    std::vector<std::pair<std::byte*, uint64_t>> mappings;
    ~Kept();
    void give_back(std::byte* data, uint64_t n) noexcept;
  };
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

// Tokens are those of `records`, the same in all calls of a block.
class BlockMemory {
 public:
  BlockMemory() = default;
  explicit BlockMemory(Memory whole) : memory_(std::move(whole)) {}

  bool empty() const { return !memory_; }
  bool whole() const { return memory_ && !partial_; }
  const Memory& memory() const { return memory_; }
  std::byte* data() const { return memory_.get(); }
  TokenSet present(const Records& records) const;
  TokenSet missing(TokenSet needed) const;
  // That it takes: of a part of a block, the pages that hold something of it. block_bytes: of all.
  uint64_t bytes(uint64_t block_bytes) const;

  // What arrived in `memory`, which is that of the block if it has any.
  void add(Memory memory, TokenSet arrived, const Records& records);
  void clear() { *this = {}; }

 private:
  struct Partial {
    TokenSet present;
    uint64_t page_bytes = 0;
  };
  Memory memory_;
  std::unique_ptr<Partial> partial_;  // null: all of it, or nothing
};

}  // namespace kvasir::tiered
