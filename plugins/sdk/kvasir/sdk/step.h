// One step as a plugin reads it: sequences, candidates, and the records of its slab.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/strided.h>
#include <kvasir/step.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir::sdk {

// What a list may choose from: a range, or an ascending list inside it.
class Candidates {
 public:
  Candidates(uint32_t begin, uint32_t end) : begin_(begin), n_(end > begin ? end - begin : 0) {}
  Candidates(const uint32_t* list, uint64_t n) : list_(list), n_(n) {}

  uint64_t size() const { return n_; }
  uint32_t operator[](uint64_t i) const {
    return list_ ? list_[i] : begin_ + static_cast<uint32_t>(i);
  }
  // How many candidates from place i on, at most `most`, follow each other without a gap.
  uint64_t run_from(uint64_t i, uint64_t most) const {
    const uint64_t end = std::min(n_ - i, most);
    if (!list_) return end;
    uint64_t n = 1;
    while (n < end && list_[i + n] == list_[i] + n) ++n;
    return n;
  }
  // Place of the first candidate that is not before `token`; size() when there is none.
  uint64_t place_of(uint32_t token) const {
    if (list_) return static_cast<uint64_t>(std::lower_bound(list_, list_ + n_, token) - list_);
    return std::min<uint64_t>(token - std::min(token, begin_), n_);
  }
  bool contains(uint32_t token) const {
    const uint64_t place = place_of(token);
    return place < n_ && (*this)[place] == token;
  }

 private:
  uint32_t begin_ = 0;
  const uint32_t* list_ = nullptr;
  uint64_t n_;
};

class Step {
 public:
  explicit Step(const kvasir_step& step)
      : step_(step), seqs_(step.seqs, step.n_seqs, step.seq_size) {}

  const kvasir_step& raw() const { return step_; }
  uint32_t layer() const { return step_.layer; }
  uint32_t moment() const { return step_.moment; }
  // Of calls whose sequences have one phase: evict_plan().
  uint32_t phase() const { return n_seqs() ? seq(0).phase : KVASIR_PHASE_NONE; }
  uint32_t n_seqs() const { return step_.n_seqs; }
  const kvasir_step_seq& seq(uint32_t i) const { return seqs_[i]; }

  // A list of scope SEQUENCE holds for every kv head.
  Candidates candidates(uint32_t seq, uint32_t kv_head) const {
    const kvasir_step_seq& of = seqs_[seq];
    const kvasir_selection* from = step_.candidates;
    if (!from) return {of.unit_begin, of.unit_end};
    const uint64_t i = heads_share_candidates() ? seq : seq * lists_per_seq() + kv_head;
    return {from->index + from->list_offsets[i], from->list_offsets[i + 1] - from->list_offsets[i]};
  }

  // Whether candidates() of a sequence are the same for every kv head.
  bool heads_share_candidates() const { return !step_.candidates || lists_per_seq() == 1; }

  // Null: the host has no page for that block.
  std::byte* record(uint32_t seq, uint32_t kv_head, uint32_t block) const {
    return at(step_.slab->pages, step_.slab->record_bytes, seq, kv_head, block);
  }
  // The same for update(), which has a page for every block it is given.
  std::byte* record_to_write(uint32_t seq, uint32_t kv_head, uint32_t block) const {
    std::byte* found = record(seq, kv_head, block);
    if (!found) {
      fail_invalid("update: layer " + std::to_string(layer()) + ", block " + std::to_string(block) +
                   " has no page for its record");
    }
    return found;
  }
  // The records of the page that holds `block`, side by side, and the bytes that the layout asks
  // for per page, which lie beside those of the other kv heads. Null: the host has no such page.
  std::byte* records_of_page(uint32_t seq, uint32_t kv_head, uint32_t block) const {
    return record(seq, kv_head, block - block % step_.slab->page_blocks);
  }
  std::byte* page_part(uint32_t seq, uint32_t kv_head, uint32_t block) const {
    std::byte* page = page_of(step_.slab->pages, seq, block);
    if (!page) return nullptr;
    return page + step_.slab->part_offset + uint64_t{kv_head} * step_.slab->page_bytes;
  }
  // The bytes a block has besides until it is FINAL; null then, or when the layout asks for none.
  std::byte* open_record(uint32_t seq, uint32_t kv_head, uint32_t block) const {
    return at(step_.slab->open_pages, step_.slab->open_bytes, seq, kv_head, block);
  }

 private:
  uint64_t lists_per_seq() const {
    const kvasir_selection& from = *step_.candidates;
    return from.scope == KVASIR_SCOPE_SEQUENCE ? 1 : from.n_lists / n_seqs();
  }
  // The page that holds `block`.
  std::byte* page_of(void* const* pages, uint32_t seq, uint32_t block) const {
    const kvasir_slab& slab = *step_.slab;
    const uint64_t page = slab.seq_pages[seq] + block / slab.page_blocks;
    if (!pages || page >= slab.seq_pages[seq + 1]) return nullptr;
    return static_cast<std::byte*>(pages[page]);
  }
  // bytes: of a block
  std::byte* at(void* const* pages, uint64_t bytes, uint32_t seq, uint32_t kv_head,
                uint32_t block) const {
    std::byte* page = page_of(pages, seq, block);
    const uint64_t page_blocks = step_.slab->page_blocks;
    return page ? page + (kv_head * page_blocks + block % page_blocks) * bytes : nullptr;
  }

  const kvasir_step& step_;
  Strided<const kvasir_step_seq> seqs_;
};

using UpdateItems = Strided<const kvasir_update_item>;

// First key of a kv head in a lease, whether it covers all heads or that one.
inline const std::byte* head_keys(const kvasir_lease& lease, const kvasir_kv_format& format,
                                  uint32_t kv_head) {
  const uint64_t skip = lease.kv_head == KVASIR_ALL_HEADS ? kv_head * format.k_head_stride : 0;
  return static_cast<const std::byte*>(lease.k) + skip;
}

}  // namespace kvasir::sdk
