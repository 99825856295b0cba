// Equal blocks of anonymous memory, or of a mapped file, carved from large mappings, reused through
// a free list. A block has a part in each area of its mapping; an area may be bound to memory
// nodes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/shared/memory_node.h"

namespace kvasir::dram {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

// One size class. Pages are committed when first written, on the nodes of their area or, where it
// has none, on that of the thread that writes. Freed blocks are handed out again first; memory goes
// back to the system with the arena.
class Arena {
 public:
  using Nodes = sdk::Nodes;
  // part_bytes: of a block in each area, a multiple of 64. One area per entry of `areas`. folder:
  // of a nameless file whose pages the blocks are, on no node in particular; empty: anonymous
  // memory. Throws sdk::Error(KVASIR_ERR_IO) when no file can be made there.
  Arena(uint64_t part_bytes, std::vector<Nodes> areas, bool huge_pages, const std::string& folder);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // From a block's part in one area to its part in the next.
  uint64_t area_bytes() const { return area_bytes_; }
  // The part in the first area, 64-byte aligned. Throws sdk::Error(KVASIR_ERR_OUT_OF_MEMORY).
  std::byte* allocate();
  // Why an area is not on its nodes; empty while all are.
  const std::string& refusal() const { return refusal_; }
  void free(std::byte* block) noexcept { free_.push_back(block); }  // grow() made the space

 private:
  void grow();
  int back_with_file(std::byte* data, uint64_t bytes);  // 0, or an errno
  void place(std::byte* mapping);

  struct Mapping {
    std::byte* data;
    uint64_t bytes;
  };
  uint64_t part_bytes_;
  std::vector<Nodes> areas_;
  uint64_t area_bytes_;
  bool huge_pages_;
  int file_ = -1;
  uint64_t file_bytes_ = 0;
  std::string refusal_;
  std::byte* next_ = nullptr;  // of the last mapping: first part never handed out
  uint64_t n_fresh_ = 0;       // and how many of them are left
  uint64_t n_blocks_ = 0;
  std::vector<Mapping> mappings_;
  std::vector<std::byte*> free_;
};

}  // namespace kvasir::dram
