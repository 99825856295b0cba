// Host-owned records of representatives and selectors, in pages that forks share until written.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/plugin/instance.h"

namespace kvasir {

class MemoryBridge;

using SlabPage = std::shared_ptr<std::byte[]>;  // memory of the layout's kind

// Pages of one layer of one sequence for one owner.
struct SlabPages {
  std::vector<SlabPage> pages;
  std::vector<SlabPage> open_pages;
};

class SlabLayout {
 public:
  SlabLayout() = default;
  // device: where layout.mem_kind asks for device memory; it must outlive all pages.
  SlabLayout(const RecordLayout& layout, uint32_t n_kv_heads, uint32_t block_size,
             uint32_t page_blocks, MemoryBridge* device = nullptr);

  bool empty() const { return record_bytes_ == 0 && open_bytes_ == 0; }
  uint64_t record_bytes() const { return record_bytes_; }
  uint64_t open_page_bytes() const { return open_bytes_ * n_kv_heads_ * page_blocks_; }
  // A page as bytes of host memory, and back.
  std::vector<std::byte> save_page(const SlabPage& page, uint64_t bytes) const;
  SlabPage load_page(std::span<const std::byte> from) const;
  uint64_t page_bytes() const { return record_bytes_ * n_kv_heads_ * page_blocks_; }
  uint32_t page_blocks() const { return page_blocks_; }

  // Creates missing pages of blocks [begin, end) and unshares those that a fork shares.
  void make_writable(SlabPages& pages, uint32_t begin, uint32_t end) const;
  // Frees open pages all of whose blocks lie below `final_blocks`.
  void free_open(SlabPages& pages, uint32_t final_blocks) const;
  // Forgets the blocks of tokens >= kv_len. The record of a block that is cut is zeroed; one that
  // is kept per token keeps what it says of the others.
  void truncate(SlabPages& pages, uint32_t kv_len) const;

  // kvasir_slab over the pages of several sequences; valid while the buffers and pages are.
  struct Buffers {
    std::vector<uint64_t> seq_pages;
    std::vector<void*> pages, open_pages;
    kvasir_slab slab{};
  };
  const kvasir_slab* view(const std::vector<const SlabPages*>& rows, Buffers& out) const;

 private:
  SlabPage new_page(uint64_t bytes) const;  // zeros, aligned to 64 bytes
  void make_page_writable(SlabPage& page, uint64_t bytes) const;
  void clear(std::byte* at, uint64_t bytes) const;

  MemoryBridge* device_ = nullptr;  // null: host memory
  uint64_t record_bytes_ = 0, open_bytes_ = 0;
  uint32_t n_kv_heads_ = 0, block_size_ = 0, page_blocks_ = 0;
  bool per_token_ = false;
};

}  // namespace kvasir
