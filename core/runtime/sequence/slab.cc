// Slab pages: allocation, copy on write, views; see slab.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/slab.h"

#include <algorithm>
#include <cstring>

#include "core/platform/memory.h"
#include "core/platform/thread_pool.h"
#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {
namespace {

constexpr uint64_t kAlign = 64;
constexpr uint64_t kChunkBytes = uint64_t{2} << 20;  // one huge page

}  // namespace

// Fresh memory is zero, and no part of a chunk is handed out twice.
SlabPage SlabChunks::new_page(uint64_t bytes) {
  const uint64_t used = (bytes + kAlign - 1) / kAlign * kAlign;
  const std::lock_guard lock(mutex_);
  if (!chunk_ || chunk_->size() - next_ < used) {
    chunk_ = std::make_shared<Region>(std::max(used, kChunkBytes));
    next_ = 0;
  }
  std::byte* page = chunk_->data() + next_;
  next_ += used;
  return {page,
          [chunk = chunk_](std::byte*) {}};  // a count of its own: it says who shares the page
}

SlabLayout::SlabLayout(const RecordLayout& layout, uint32_t n_kv_heads, uint32_t block_size,
                       uint32_t page_blocks, MemoryBridge* device, ThreadPool* pool)
    : device_(is_host_memory(layout.mem_kind) ? nullptr : device),
      pool_(pool && pool->spans_nodes() ? pool : nullptr),
      record_bytes_(layout.record_bytes),
      open_bytes_(layout.open_bytes),
      part_bytes_(layout.page_bytes),
      n_kv_heads_(n_kv_heads),
      block_size_(block_size),
      page_blocks_(page_blocks),
      per_token_(layout.flags & KVASIR_LAYOUT_PER_TOKEN) {}

void SlabLayout::make_page_writable(SlabPage& page, uint64_t bytes) const {
  if (!page) {
    page = new_page(bytes);
  } else if (page.use_count() > 1) {
    SlabPage copy = new_page(bytes);
    if (device_)
      device_->copy_page(copy.get(), page.get(), bytes);
    else
      std::memcpy(copy.get(), page.get(), bytes);
    page = std::move(copy);
  }
}

void SlabLayout::clear(std::byte* at, uint64_t bytes) const {
  if (device_)
    device_->clear(at, bytes);
  else
    std::memset(at, 0, bytes);
}

std::vector<std::byte> SlabLayout::save_page(const SlabPage& page, uint64_t bytes) const {
  std::vector<std::byte> out(bytes);
  if (device_)
    device_->save_page(out, page.get());
  else
    std::memcpy(out.data(), page.get(), bytes);
  return out;
}

SlabPage SlabLayout::load_page(std::span<const std::byte> from) const {
  SlabPage page = new_page(from.size());
  if (device_)
    device_->load_page(page.get(), from);
  else
    std::memcpy(page.get(), from.data(), from.size());
  return page;
}

SlabPage SlabLayout::new_page(uint64_t bytes) const {
  if (device_) return device_->new_page(bytes);
  if (pool_) return spread_page(bytes);
  return chunks_->new_page(bytes);
}

// Fresh memory lies where it is first touched: beside the worker that scores that kv head.
SlabPage SlabLayout::spread_page(uint64_t bytes) const {
  auto region = std::make_shared<Region>(bytes);
  const uint64_t parts = bytes == page_bytes() ? part_bytes_ * n_kv_heads_ : 0;
  pool_->for_own_shares(n_kv_heads_, [&](uint64_t begin, uint64_t end, uint32_t) {
    const auto touch = [&](std::byte* from, uint64_t n) {
      const uint64_t of_head = n / n_kv_heads_;
      std::memset(from + begin * of_head, 0, (end - begin) * of_head);
    };
    touch(region->data(), bytes - parts);
    touch(region->data() + bytes - parts, parts);
  });
  std::byte* data = region->data();
  return {std::move(region), data};
}

void SlabLayout::make_writable(SlabPages& pages, uint32_t begin, uint32_t end) const {
  if (begin >= end) return;
  const uint32_t last_page = (end - 1) / page_blocks_;
  if (pages.pages.size() <= last_page) pages.pages.resize(last_page + 1);
  if (open_bytes_ && pages.open_pages.size() <= last_page) pages.open_pages.resize(last_page + 1);
  for (uint32_t page = begin / page_blocks_; page <= last_page; ++page) {
    if (record_bytes_) make_page_writable(pages.pages[page], page_bytes());
    if (open_bytes_) make_page_writable(pages.open_pages[page], open_page_bytes());
  }
}

void SlabLayout::free_open(SlabPages& pages, uint32_t final_blocks) const {
  const size_t n = std::min<size_t>(final_blocks / page_blocks_, pages.open_pages.size());
  for (size_t page = 0; page < n; ++page) pages.open_pages[page].reset();
}

void SlabLayout::truncate(SlabPages& pages, uint32_t kv_len) const {
  const uint32_t n_blocks = (kv_len + block_size_ - 1) / block_size_;
  const size_t n_pages = (n_blocks + page_blocks_ - 1) / page_blocks_;
  if (pages.pages.size() > n_pages) pages.pages.resize(n_pages);
  if (pages.open_pages.size() > n_pages) pages.open_pages.resize(n_pages);
  if (n_pages == 0) return;
  // Records past the end must read as new ones when their blocks are written again.
  make_writable(pages, (static_cast<uint32_t>(n_pages) - 1) * page_blocks_, n_blocks);
  const uint64_t first = kv_len / block_size_, n = n_pages * page_blocks_ - first;  // blocks
  if (n == 0) return;
  const uint64_t kept = per_token_ ? record_bytes_ / block_size_ * (kv_len % block_size_) : 0;
  for (uint32_t head = 0; head < n_kv_heads_; ++head) {
    const uint64_t slot = uint64_t{head} * page_blocks_ + first % page_blocks_;
    if (record_bytes_)
      clear(pages.pages[n_pages - 1].get() + slot * record_bytes_ + kept, n * record_bytes_ - kept);
    if (open_bytes_)
      clear(pages.open_pages[n_pages - 1].get() + slot * open_bytes_, n * open_bytes_);
  }
  if (part_bytes_) clear(pages.pages[n_pages - 1].get() + part_offset(), part_bytes_ * n_kv_heads_);
}

const kvasir_slab* SlabLayout::view(const std::vector<const SlabPages*>& sequences,
                                    Buffers& out) const {
  if (empty()) return nullptr;
  out.seq_pages.clear();
  out.pages.clear();
  out.open_pages.clear();
  for (const SlabPages* seq : sequences) {
    out.seq_pages.push_back(out.pages.size());
    for (size_t page = 0; page < seq->pages.size(); ++page) {
      out.pages.push_back(seq->pages[page].get());
      out.open_pages.push_back(page < seq->open_pages.size() ? seq->open_pages[page].get()
                                                             : nullptr);
    }
  }
  out.seq_pages.push_back(out.pages.size());
  out.slab = {sizeof(kvasir_slab),
              page_blocks_,
              record_bytes_,
              open_bytes_,
              out.seq_pages.data(),
              out.pages.data(),
              out.open_pages.data(),
              device_ ? KVASIR_MEM_DEVICE : KVASIR_MEM_HOST,
              static_cast<uint32_t>(part_bytes_),
              part_offset()};
  return &out.slab;
}

}  // namespace kvasir
