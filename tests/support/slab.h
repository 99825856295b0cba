// Records of one layer of one sequence, as the host hands them to plugins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <vector>

namespace kvasir::test {

class Slab {
 public:
  static constexpr uint32_t kPageBlocks = 4;

  Slab() = default;
  Slab(const kvasir_geometry& geometry, const kvasir_layout& layout, uint32_t n_blocks)
      : seq_pages_{0, (n_blocks + kPageBlocks - 1) / kPageBlocks},
        records_(make(geometry, layout.record_bytes)),
        open_(make(geometry, layout.open_bytes)) {
    for (auto& page : records_) pages_.push_back(page.data());
    for (auto& page : open_) open_pages_.push_back(page.data());
    slab_ = {sizeof slab_,
             kPageBlocks,
             layout.record_bytes,
             layout.open_bytes,
             seq_pages_.data(),
             pages_.data(),
             layout.open_bytes ? open_pages_.data() : nullptr,
             KVASIR_MEM_HOST,
             0};
  }
  Slab(Slab&&) = default;
  Slab& operator=(Slab&&) = default;

  const kvasir_slab* get() const { return &slab_; }
  // [page][kv_head][block of the page][record]
  const std::vector<std::vector<float>>& records() const { return records_; }
  const float* record(uint32_t kv_head, uint32_t block) const {
    return records_[block / kPageBlocks].data() +
           (kv_head * kPageBlocks + block % kPageBlocks) * slab_.record_bytes / sizeof(float);
  }
  void lose_page(uint32_t page) { pages_[page] = nullptr; }

 private:
  using Pages = std::vector<std::vector<float>>;
  Pages make(const kvasir_geometry& geometry, uint64_t bytes) const {
    const uint64_t floats = geometry.n_kv_heads * kPageBlocks * bytes / sizeof(float);
    return Pages(seq_pages_[1], std::vector<float>(floats));
  }

  std::vector<uint64_t> seq_pages_;
  Pages records_, open_;
  std::vector<void*> pages_, open_pages_;
  kvasir_slab slab_{};
};

}  // namespace kvasir::test
