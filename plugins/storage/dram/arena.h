// Equal blocks of anonymous memory, carved from large mappings, reused through a free list.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::dram {

// One size class. Pages are committed when first written; the kernel then puts them on the memory
// node of the thread that writes. Freed blocks are handed out again first; memory goes back to the
// system with the arena.
class Arena {
 public:
  Arena(uint64_t block_bytes, bool huge_pages);  // block_bytes: a multiple of 64
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }
  // 64-byte aligned. Throws sdk::Error(KVASIR_ERR_OUT_OF_MEMORY).
  std::byte* allocate();
  void free(std::byte* block) noexcept { free_.push_back(block); }  // grow() made the room

 private:
  void grow();

  struct Mapping {
    std::byte* data;
    uint64_t bytes;
  };
  uint64_t block_bytes_;
  bool huge_pages_;
  std::byte* next_ = nullptr;  // of the last mapping: first block never handed out
  uint64_t n_fresh_ = 0;       // and how many of them are left
  uint64_t n_blocks_ = 0;
  std::vector<Mapping> mappings_;
  std::vector<std::byte*> free_;
};

}  // namespace kvasir::dram
