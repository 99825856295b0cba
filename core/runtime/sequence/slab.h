// Records of representatives and selectors, in pages of the host that forks share until one of them
// writes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/plugin/instance.h"

namespace kvasir {

class MemoryBridge;
class Region;
class ThreadPool;

constexpr uint32_t kSlabPageBlocks = 64;  // blocks per page of an engine

using SlabPage = std::shared_ptr<std::byte[]>;  // host or device memory, as the layout says

// Pages of one layer of one sequence for one owner. Page i holds the records of blocks
// [i * page_blocks, (i + 1) * page_blocks) as [kv head][block], behind all of them what the owner
// keeps of the whole page, by kv head.
struct SlabPages {
  std::vector<SlabPage> pages;
  std::vector<SlabPage> open_pages;  // records that blocks have until they are FINAL; may be null
};

// Host memory for pages, side by side in huge pages of the kernel: scoring reads the records of all
// blocks, and small pages cost it a third of its speed at a million tokens. A chunk is freed when
// none of its pages is left. Thread-safe.
class SlabChunks {
 public:
  SlabPage new_page(uint64_t bytes);  // zeros, aligned to 64 bytes

 private:
  std::mutex mutex_;
  std::shared_ptr<Region> chunk_;  // the one that pages are taken from
  uint64_t next_ = 0;              // bytes of it that are taken
};

// How the pages of one owner are laid out, and what is done to them.
class SlabLayout {
 public:
  SlabLayout() = default;
  // block_size in tokens. device: makes the pages where layout.mem_kind asks for device memory; it
  // must outlive them. pool: spreads the kv heads of a page over its memory nodes.
  SlabLayout(const RecordLayout& layout, uint32_t n_kv_heads, uint32_t block_size,
             uint32_t page_blocks, MemoryBridge* device = nullptr, ThreadPool* pool = nullptr);

  bool empty() const { return record_bytes_ == 0 && open_bytes_ == 0; }
  uint64_t record_bytes() const { return record_bytes_; }
  // Of a page, and before what is kept of it as a whole.
  uint64_t page_bytes() const { return part_offset() + part_bytes_ * n_kv_heads_; }
  uint64_t part_offset() const {
    return (record_bytes_ * page_blocks_ * n_kv_heads_ + 63) / 64 * 64;
  }
  uint64_t open_page_bytes() const { return open_bytes_ * n_kv_heads_ * page_blocks_; }
  uint32_t page_blocks() const { return page_blocks_; }
  // A page, which exists, as bytes of host memory; and a page with these bytes.
  std::vector<std::byte> save_page(const SlabPage& page, uint64_t bytes) const;
  SlabPage load_page(std::span<const std::byte> from) const;

  // Creates missing pages of blocks [begin, end) and copies those that a fork shares.
  void make_writable(SlabPages& pages, uint32_t begin, uint32_t end) const;
  // Frees open pages all of whose blocks lie below `final_blocks`.
  void free_open(SlabPages& pages, uint32_t final_blocks) const;
  // Forgets the records of tokens from kv_len on. The record of a block that is cut is zeroed;
  // where records are kept per token, only the part of the tokens that are cut off; and what is
  // kept of its whole page.
  void truncate(SlabPages& pages, uint32_t kv_len) const;

  // What a kvasir_slab points to.
  struct Buffers {
    std::vector<uint64_t> seq_pages;
    std::vector<void*> pages, open_pages;
    kvasir_slab slab{};
  };
  // The pages of several sequences as plugins see them, valid while `out` and the pages are. Null
  // where the layout has no records.
  const kvasir_slab* view(const std::vector<const SlabPages*>& sequences, Buffers& out) const;

 private:
  SlabPage new_page(uint64_t bytes) const;  // zeros, aligned to 64 bytes
  SlabPage spread_page(uint64_t bytes) const;
  void make_page_writable(SlabPage& page, uint64_t bytes) const;
  void clear(std::byte* at, uint64_t bytes) const;

  std::shared_ptr<SlabChunks> chunks_ = std::make_shared<SlabChunks>();
  MemoryBridge* device_ = nullptr;  // null: host memory
  ThreadPool* pool_ = nullptr;      // null: one memory node
  uint64_t record_bytes_ = 0, open_bytes_ = 0;
  uint64_t part_bytes_ = 0;  // kvasir_layout.page_bytes
  uint32_t n_kv_heads_ = 0, block_size_ = 0, page_blocks_ = 0;
  bool per_token_ = false;
};

}  // namespace kvasir
