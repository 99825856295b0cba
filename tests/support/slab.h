// Records of one layer of one sequence, as the host hands them to plugins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <algorithm>
#include <vector>

namespace kvasir::test {

class Slab {
 public:
  static constexpr uint32_t kPageBlocks = 4;  // where the geometry says nothing else

  Slab() = default;
  Slab(const kvasir_geometry& geometry, const kvasir_layout& layout, uint32_t n_blocks)
      : page_blocks_(geometry.page_blocks ? geometry.page_blocks : kPageBlocks),
        seq_pages_{0, (n_blocks + page_blocks_ - 1) / page_blocks_},
        part_offset_((geometry.n_kv_heads * page_blocks_ * layout.record_bytes + 63) / 64 * 64),
        records_(make(part_offset_ + geometry.n_kv_heads * layout.page_bytes)),
        open_(make(geometry.n_kv_heads * page_blocks_ * layout.open_bytes)) {
    for (auto& page : records_) pages_.push_back(page.data());
    for (auto& page : open_) open_pages_.push_back(page.data());
    slab_ = {sizeof slab_,
             page_blocks_,
             layout.record_bytes,
             layout.open_bytes,
             seq_pages_.data(),
             pages_.data(),
             layout.open_bytes ? open_pages_.data() : nullptr,
             KVASIR_MEM_HOST,
             layout.page_bytes,
             part_offset_};
  }
  Slab(Slab&&) = default;
  Slab& operator=(Slab&&) = default;

  const kvasir_slab* get() const { return &slab_; }
  // [page][kv_head][block of the page][record], behind the records the page's part of each head
  const std::vector<std::vector<float>>& records() const { return records_; }
  const float* record(uint32_t kv_head, uint32_t block) const {
    return records_[block / page_blocks_].data() +
           (kv_head * page_blocks_ + block % page_blocks_) * slab_.record_bytes / sizeof(float);
  }
  // As truncation within a page does.
  void clear_page_parts(uint32_t page) {
    std::fill(records_[page].begin() + static_cast<long>(part_offset_ / sizeof(float)),
              records_[page].end(), 0.0f);
  }
  void lose_page(uint32_t page) { pages_[page] = nullptr; }

 private:
  using Pages = std::vector<std::vector<float>>;
  Pages make(uint64_t page_bytes) const {
    return Pages(seq_pages_[1], std::vector<float>(page_bytes / sizeof(float)));
  }

  uint32_t page_blocks_ = kPageBlocks;
  std::vector<uint64_t> seq_pages_;
  uint64_t part_offset_ = 0;
  Pages records_, open_;
  std::vector<void*> pages_, open_pages_;
  kvasir_slab slab_{};
};

}  // namespace kvasir::test
