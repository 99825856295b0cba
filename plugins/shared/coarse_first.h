// BlockRepresentative over VectorRecords whose best records are found by coarse copies: 4 bits per
// element bound every score from above, and records are read of those candidates alone that may be
// among the best. The choice is the same (kernels/coarse_records.h). For plugins that link
// kvasir::kernels.
//
//   class Method : public sdk::VectorRecords {  // whose sums() is true
//     …
//     // The vector whose dot product with a record is its score, of n queries together.
//     void weights(const kernels::ScoreQueries& queries, float* out) const;
//   };
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/coarse_records.h"
#include "kernels/topk.h"
#include "plugins/shared/vector_records.h"

namespace kvasir::sdk {

inline constexpr kvasir_option_schema kCoarseFirstOption =
    bool_option({.key = "coarse_first",
                 .help = "keep a copy of 4 bits per element, and read records only of blocks that "
                         "it leaves among the best: the same choice, fewer bytes"},
                true);

template <class Method>
class CoarseFirst : public BlockRepresentative<Method> {
  using Base = BlockRepresentative<Method>;
  using Chunk = typename Base::Chunk;

 public:
  CoarseFirst(const Host& host, const Options& options)
      : Base(host, options), coarse_first_(options.boolean("coarse_first")) {}

  void bind(const kvasir_geometry& geometry) {
    Base::bind(geometry);
    page_blocks_ = geometry.page_blocks;
    width_ = this->method().n_vectors() * geometry.head_dim;
  }

  void layout(kvasir_layout& out) const {
    Base::layout(out);
    if (has_coarse())
      out.page_bytes =
          static_cast<uint32_t>(kHeader + aligned(kernels::coarse_bytes(page_blocks_, width_)));
  }

  // A page has its copy from when its last block is full; a block that is built again renews it.
  void update(const Step& step, const UpdateItems& items) const {
    Base::update(step, items);
    if (!has_coarse()) return;
    const std::vector<Page> pages = pages_of(items);
    const uint32_t n_heads = this->n_kv_heads();
    this->host().parallel_for(
        pages.size() * n_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
          for (uint64_t i = begin; i < end; ++i)
            make(step, pages[i / n_heads], static_cast<uint32_t>(i % n_heads));
        });
  }

  void score(const Step& step, const kvasir_score_in& in, kvasir_score_out& out) const {
    const typename Base::Wanted wanted = this->check(step, in, out);
    if (!has_coarse() || wanted.n_heads != 1 || !pays(wanted.longest, in.n_best))
      return Base::score(step, in, out);
    std::atomic<uint64_t> bytes = 0;
    this->for_each_chunk(step, wanted, true, bound_bytes(wanted),
                         [&](const Chunk& chunk, std::byte* scratch) {
                           bytes += bound(step, wanted, chunk, in.n_best, scratch);
                         });
    const uint32_t n_heads = this->n_kv_heads(), n_seqs = step.n_seqs();
    const uint64_t scratch_bytes = refine_bytes(wanted.longest);
    this->host().parallel_for(
        uint64_t{n_heads} * n_seqs, this->host().spans_nodes() || n_seqs == 1 ? 0 : 1,
        [&](uint64_t begin, uint64_t end, uint32_t worker) {
          const Scratch<std::byte> scratch(this->host(), worker, scratch_bytes);
          for (uint64_t i = begin; i < end; ++i) {
            const auto seq = static_cast<uint32_t>(i % n_seqs),
                       kv_head = static_cast<uint32_t>(i / n_seqs);
            bytes += refine(step, wanted, this->list_of(seq, kv_head), in.n_best, scratch.data());
          }
        });
    out.bytes_read = bytes;
  }

 private:
  // Before the copy.
  struct Header {
    uint32_t made;  // whether it is there: kMade
    float unit;     // as of make_coarse()
  };
  static constexpr uint64_t kHeader = 64;
  static constexpr uint32_t kMade = 4;  // 1 to 3 were of other forms
  // How many copies further on memory is asked for.
  static constexpr uint32_t kAhead = 2;
  // Where more than a quarter is chosen, most records would be read besides.
  static bool pays(uint64_t n, uint32_t n_best) { return n_best != 0 && n_best <= n / 4; }

  struct Page {
    uint32_t seq, first_block;
    bool ends;  // its last block is among the items
    friend bool operator==(const Page& a, const Page& b) {
      return a.seq == b.seq && a.first_block == b.first_block;
    }
  };

  bool has_coarse() const { return coarse_first_ && page_blocks_ != 0 && page_blocks_ % 16 == 0; }

  std::vector<Page> pages_of(const UpdateItems& items) const {
    std::vector<Page> pages;
    for (uint64_t i = 0; i < items.size(); ++i) {
      const kvasir_update_item& item = items[i];
      if (!(item.flags & KVASIR_ITEM_SEALED)) continue;
      const Page page{item.seq, item.block - item.block % page_blocks_,
                      item.block % page_blocks_ == page_blocks_ - 1};
      const auto found = std::find(pages.rbegin(), pages.rend(), page);  // most often the last one
      if (found == pages.rend())
        pages.push_back(page);
      else
        found->ends |= page.ends;
    }
    return pages;
  }

  void make(const Step& step, const Page& page, uint32_t kv_head) const {
    std::byte* part = step.page_part(page.seq, kv_head, page.first_block);
    Header header;
    std::memcpy(&header, part, sizeof header);
    if (!page.ends && header.made != kMade) return;
    const std::byte* records = step.records_of_page(page.seq, kv_head, page.first_block);
    const Method& method = this->method();
    const bool is_made = kernels::make_coarse({records, step.raw().slab->record_bytes, page_blocks_,
                                               method.head_dim(), method.type(), nullptr},
                                              width_, part + kHeader, &header.unit);
    header.made = is_made ? kMade : 0;
    std::memcpy(part, &header, sizeof header);
  }

  struct Coarse {
    const std::byte* copy = nullptr;  // null: none
    float unit = 0.0f;
  };
  Coarse coarse(const Step& step, uint32_t seq, uint32_t kv_head, uint32_t block) const {
    const std::byte* part = step.page_part(seq, kv_head, block);
    Header header{};
    if (part) std::memcpy(&header, part, sizeof header);
    if (header.made != kMade) return {};
    return {part + kHeader, header.unit};
  }

  // Bounds of candidates whose page has a copy, scores of the others. Returns the bytes read.
  // Copies of a page's kv heads lie side by side: they are read in turn, page by page.
  uint64_t bound(const Step& step, const typename Base::Wanted& wanted, const Chunk& chunk,
                 uint32_t n_best, std::byte* scratch) const {
    const Candidates from = step.candidates(chunk.seq, chunk.first_head);
    const uint32_t last_head = chunk.first_head + chunk.n_heads;
    const kvasir_slab& slab = *step.raw().slab;
    const auto score = [&](uint32_t kv_head, uint64_t begin, uint64_t end) {
      this->score_places(step, wanted, this->list_of(chunk.seq, kv_head), begin, end, scratch);
      return (end - begin) * slab.record_bytes;
    };
    uint64_t bytes = 0;
    if (!pays(from.size(), n_best)) {
      for (uint32_t head = chunk.first_head; head < last_head; ++head)
        bytes += score(head, chunk.begin, chunk.end);
      return bytes;
    }
    auto* bounds = reinterpret_cast<float*>(scratch + aligned(this->score_scratch_bytes(wanted)));
    float* coarse_scratch = bounds + page_blocks_;
    float* weights =
        coarse_scratch + aligned(kernels::coarse_scratch_bytes(width_)) / sizeof(float);
    for (uint32_t i = 0; i < chunk.n_heads; ++i)
      this->method().weights(group(wanted, this->list_of(chunk.seq, chunk.first_head + i)),
                             weights + i * aligned(width_));
    for (uint64_t i = chunk.begin, end; i < chunk.end; i = end) {
      const uint32_t first = from[i] - from[i] % page_blocks_;
      const uint64_t left = std::min<uint64_t>(chunk.end - i, first + page_blocks_ - from[i]);
      end = i + from.run_from(i, left);
      const bool is_run = end - i == left || from[end] - first >= page_blocks_;
      while (!is_run && end < chunk.end && from[end] - first < page_blocks_) ++end;
      for (uint32_t head = chunk.first_head; head < last_head; ++head) {
        const auto [copy, unit] = coarse(step, chunk.seq, head, first);
        if (!copy || end - i < page_blocks_ / 4) {
          bytes += score(head, i, end);
          continue;
        }
        const std::byte* next = nullptr;
        if (head + kAhead < last_head)
          next = step.page_part(chunk.seq, head + kAhead, first);
        else if (end < from.size())
          next = step.page_part(chunk.seq, std::min(head + kAhead - chunk.n_heads, last_head - 1),
                                from[end]);
        if (next) __builtin_prefetch(next);  // whether it has a copy
        float* value = wanted.scores(this->list_of(chunk.seq, head));
        const bool is_page = end - i == page_blocks_;  // then no block of it is left out
        kernels::bound_coarse(weights + (head - chunk.first_head) * aligned(width_), width_, copy,
                              unit, next ? next + kHeader : nullptr, page_blocks_,
                              is_page ? value + i : bounds, coarse_scratch);
        if (!is_page)
          for (uint64_t j = i; j < end; ++j) value[j] = bounds[from[j] - first];
        bytes += slab.page_bytes;
      }
    }
    return bytes;
  }

  // Scratch of refine(), for a list of n candidates.
  struct Refined {
    float* weights;         // [width_]
    void* dots;             // of score_dot()
    const void** records;   // [n]; before them, keys of top_k()
    uint32_t *best, *more;  // [n] places
    uint32_t* of;           // [n] place of each of the records
    float* scores;          // [n]
  };
  Refined refined_at(std::byte* scratch, uint64_t n) const {
    std::byte* const dots = scratch + aligned(width_ * sizeof(float));
    std::byte* const records = dots + aligned(kernels::score_scratch_bytes(1, width_));
    auto* const best = reinterpret_cast<uint32_t*>(records + n * sizeof(void*));
    return {reinterpret_cast<float*>(scratch),
            dots,
            reinterpret_cast<const void**>(records),
            best,
            best + n,
            best + 2 * n,
            reinterpret_cast<float*>(best + 3 * n)};
  }
  uint64_t refine_bytes(uint64_t n) const {
    return aligned(width_ * sizeof(float)) + aligned(kernels::score_scratch_bytes(1, width_)) +
           n * (sizeof(void*) + 3 * sizeof(uint32_t) + sizeof(float));
  }

  // Scores in place of the bounds that are not below the n_best-th best score: first of those with
  // the highest bounds, whose n_best-th best is at most that. Returns the bytes read.
  uint64_t refine(const Step& step, const typename Base::Wanted& wanted, uint32_t list,
                  uint32_t n_best, std::byte* scratch) const {
    const uint64_t n = step.candidates(list / this->n_kv_heads(), list % this->n_kv_heads()).size();
    if (!pays(n, n_best)) return 0;
    float* value = wanted.scores(list);
    const Refined s = refined_at(scratch, n);
    this->method().weights(group(wanted, list), s.weights);
    // Twice as many as are sought: their n_best-th best score is hardly ever below that of all.
    const uint32_t n_first = 2 * n_best;
    kernels::top_k(value, n, n_first, s.best, s.records);
    score_listed(step, wanted, list, {s.best, n_first}, s);
    // They have their scores, and as NaN they are not listed again.
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    for (uint32_t i = 0; i < n_first; ++i) s.scores[i] = std::exchange(value[s.best[i]], kNone);
    kernels::top_k(s.scores, n_first, n_best, s.of, s.records);
    float least = s.scores[s.of[0]];
    for (uint32_t i = 1; i < n_best; ++i) least = std::min(least, s.scores[s.of[i]]);
    const uint64_t n_more = kernels::list_from(value, n, least, s.more);
    for (uint32_t i = 0; i < n_first; ++i) value[s.best[i]] = s.scores[i];
    score_listed(step, wanted, list, {s.more, n_more}, s);
    return (n_first + n_more) * step.raw().slab->record_bytes;
  }

  // Of candidates anywhere in the list: nothing foresees where their records lie, so they are asked
  // for before the first one is scored, but no more than the second cache holds.
  void score_listed(const Step& step, const typename Base::Wanted& wanted, uint32_t list,
                    std::span<const uint32_t> places, const Refined& s) const {
    constexpr size_t kAskedFor = 512;
    const uint32_t seq = list / this->n_kv_heads(), kv_head = list % this->n_kv_heads();
    const Candidates from = step.candidates(seq, kv_head);
    const uint64_t bytes = step.raw().slab->record_bytes;
    size_t n = 0;
    for (const uint32_t place : places) {
      const std::byte* record = step.record(seq, kv_head, from[place]);
      if (!record) continue;  // it ranks below all others already
      for (uint64_t line = 0; n < kAskedFor && line < bytes; line += 64)
        __builtin_prefetch(record + line, 0, 2);
      s.records[n] = record;
      s.of[n++] = place;
    }
    kernels::Records records{};
    records.list = s.records;
    records.n = n;
    records.head_dim = width_;
    records.type = this->method().type();
    kernels::score_dot({s.weights, 1, false}, records, s.scores, n, s.dots);
    for (size_t i = 0; i < n; ++i) wanted.scores(list)[s.of[i]] = s.scores[i];
  }

  kernels::ScoreQueries group(const typename Base::Wanted& wanted, uint32_t list) const {
    return {this->queries(wanted, list), this->group_size(), wanted.summed};
  }

  // Floats, too: 16 of them are 64 bytes.
  static constexpr uint64_t aligned(uint64_t n) { return (n + 63) / 64 * 64; }
  uint64_t bound_bytes(const typename Base::Wanted& wanted) const {
    return aligned(this->score_scratch_bytes(wanted)) + page_blocks_ * sizeof(float) +
           aligned(kernels::coarse_scratch_bytes(width_)) +
           this->n_kv_heads() * aligned(width_) * sizeof(float);
  }

  bool coarse_first_;
  uint32_t page_blocks_ = 0;
  uint64_t width_ = 0;  // elements of a record
};

}  // namespace kvasir::sdk
