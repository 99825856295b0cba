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
#include <span>
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
    const uint64_t scratch_bytes = refine_bytes(wanted);
    this->host().parallel_for(
        uint64_t{n_heads} * n_seqs, this->host().spans_nodes() ? 0 : 1,
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
    uint32_t made;   // whether it is there: kMade
    float distance;  // as of make_coarse()
  };
  static constexpr uint64_t kHeader = 64;
  static constexpr uint32_t kMade = 3;  // 1 had another order of the codes, 2 no distance
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
                                              width_, part + kHeader, &header.distance);
    header.made = is_made ? kMade : 0;
    std::memcpy(part, &header, sizeof header);
  }

  struct Coarse {
    const std::byte* copy = nullptr;  // null: none
    float distance = 0.0f;
  };
  Coarse coarse(const Step& step, uint32_t seq, uint32_t kv_head, uint32_t block) const {
    const std::byte* part = step.page_part(seq, kv_head, block);
    Header header{};
    if (part) std::memcpy(&header, part, sizeof header);
    if (header.made != kMade) return {};
    return {part + kHeader, header.distance};
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
        const auto [copy, distance] = coarse(step, chunk.seq, head, first);
        if (!copy || end - i < page_blocks_ / 4) {
          bytes += score(head, i, end);
          continue;
        }
        const std::byte* next = nullptr;
        if (head + 1 < last_head)
          next = step.page_part(chunk.seq, head + 1, first);
        else if (end < from.size())
          next = step.page_part(chunk.seq, chunk.first_head, from[end]);
        if (next) {  // whether it has a copy, and the part that most often comes then
          __builtin_prefetch(next);
          __builtin_prefetch(next + slab.page_bytes);
        }
        kernels::bound_coarse(weights + (head - chunk.first_head) * aligned(width_), width_, copy,
                              distance, next ? next + kHeader : nullptr, page_blocks_, bounds,
                              coarse_scratch);
        float* value = wanted.scores(this->list_of(chunk.seq, head));
        if (is_run)
          std::copy_n(bounds + (from[i] - first), end - i, value + i);
        else
          for (uint64_t j = i; j < end; ++j) value[j] = bounds[from[j] - first];
        bytes += slab.page_bytes;
      }
    }
    return bytes;
  }

  // Scores in place of the bounds that are not below the n_best-th best score: first of those with
  // the highest bounds, whose lowest score is at most that. Returns the bytes read.
  uint64_t refine(const Step& step, const typename Base::Wanted& wanted, uint32_t list,
                  uint32_t n_best, std::byte* scratch) const {
    const uint64_t n = step.candidates(list / this->n_kv_heads(), list % this->n_kv_heads()).size();
    if (!pays(n, n_best)) return 0;
    float* value = wanted.scores(list);
    std::byte* const keys = scratch + aligned(this->score_scratch_bytes(wanted));
    auto* const best = reinterpret_cast<uint32_t*>(keys + n * sizeof(uint64_t));
    uint32_t *const from = best + n, *const more = from + n;
    kernels::top_k(value, n, n_best, best, keys);
    score_listed(step, wanted, list, {best, n_best}, scratch);
    float least = value[best[0]];
    for (uint32_t i = 1; i < n_best; ++i) least = std::min(least, value[best[i]]);
    const uint64_t n_from = kernels::list_from(value, n, least, from);
    const auto end = std::set_difference(from, from + n_from, best, best + n_best, more);
    score_listed(step, wanted, list, {more, end}, scratch);
    return (n_best + static_cast<uint64_t>(end - more)) * step.raw().slab->record_bytes;
  }

  // Records that are scored in one call, and the places of their scores.
  struct Batch {
    static constexpr size_t kMost = 64;
    uint32_t n = 0;
    const void* records[kMost];
    uint32_t of[kMost];
  };

  // Of candidates anywhere in the list, a few at a time: while they are scored, the next ones are
  // on their way, for nothing else foresees where they lie.
  void score_listed(const Step& step, const typename Base::Wanted& wanted, uint32_t list,
                    std::span<const uint32_t> places, std::byte* scratch) const {
    float scores[Batch::kMost];
    ScoreTask task{};
    task.q = this->queries(wanted, list);
    task.group_size = this->group_size();
    task.summed = wanted.summed;
    task.out = scores;
    task.out_stride = Batch::kMost;
    Batch batches[2];
    ask_for(step, list, places.first(std::min(Batch::kMost, places.size())), batches[0]);
    for (size_t i = 0; !places.empty(); ++i) {
      places = places.subspan(std::min(Batch::kMost, places.size()));
      ask_for(step, list, places.first(std::min(Batch::kMost, places.size())),
              batches[(i + 1) % 2]);
      const Batch& batch = batches[i % 2];
      task.list = batch.records;
      task.n = batch.n;
      this->method().score(task, scratch);
      for (uint32_t j = 0; j < batch.n; ++j) wanted.scores(list)[batch.of[j]] = scores[j];
    }
  }

  void ask_for(const Step& step, uint32_t list, std::span<const uint32_t> places,
               Batch& batch) const {
    const uint32_t seq = list / this->n_kv_heads(), kv_head = list % this->n_kv_heads();
    const Candidates from = step.candidates(seq, kv_head);
    const uint64_t bytes = step.raw().slab->record_bytes;
    batch.n = 0;
    for (const uint32_t place : places) {
      const std::byte* record = step.record(seq, kv_head, from[place]);
      if (!record) continue;  // it ranks below all others already
      for (uint64_t line = 0; line < bytes; line += 64) __builtin_prefetch(record + line, 0, 2);
      batch.records[batch.n] = record;
      batch.of[batch.n++] = place;
    }
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
  uint64_t refine_bytes(const typename Base::Wanted& wanted) const {
    return aligned(this->score_scratch_bytes(wanted)) +
           wanted.longest * (sizeof(uint64_t) + 3 * sizeof(uint32_t));
  }

  bool coarse_first_;
  uint32_t page_blocks_ = 0;
  uint64_t width_ = 0;  // elements of a record
};

}  // namespace kvasir::sdk
