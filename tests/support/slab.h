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
        records_(make(geometry, page_blocks_ * layout.record_bytes + layout.page_bytes)),
        open_(make(geometry, page_blocks_ * layout.open_bytes)) {
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
             layout.page_bytes};
  }
  Slab(Slab&&) = default;
  Slab& operator=(Slab&&) = default;

  const kvasir_slab* get() const { return &slab_; }
  // [page][kv_head][block of the page][record], behind each head's records the page's part
  const std::vector<std::vector<float>>& records() const { return records_; }
  const float* record(uint32_t kv_head, uint32_t block) const {
    return records_[block / page_blocks_].data() +
           (kv_head * (page_blocks_ * slab_.record_bytes + slab_.page_bytes) +
            block % page_blocks_ * slab_.record_bytes) /
               sizeof(float);
  }
  // As truncation within a page does.
  void clear_page_parts(uint32_t page) {
    const uint64_t records = page_blocks_ * slab_.record_bytes;
    for (uint64_t at = 0; at < records_[page].size() * sizeof(float);
         at += records + slab_.page_bytes)
      std::fill_n(records_[page].begin() + static_cast<long>((at + records) / sizeof(float)),
                  slab_.page_bytes / sizeof(float), 0.0f);
  }
  void lose_page(uint32_t page) { pages_[page] = nullptr; }

 private:
  using Pages = std::vector<std::vector<float>>;
  Pages make(const kvasir_geometry& geometry, uint64_t head_bytes) const {
    const uint64_t floats = geometry.n_kv_heads * head_bytes / sizeof(float);
    return Pages(seq_pages_[1], std::vector<float>(floats));
  }

  uint32_t page_blocks_ = kPageBlocks;
  std::vector<uint64_t> seq_pages_;
  Pages records_, open_;
  std::vector<void*> pages_, open_pages_;
  kvasir_slab slab_{};
};

}  // namespace kvasir::test
