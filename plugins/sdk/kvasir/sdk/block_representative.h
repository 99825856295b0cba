// Everything a representative does besides its arithmetic: one record per (kv head, full block),
// built when the block is full, scored for all query heads of the group at once, in parallel. One
// that builds at other moments too derives from it and adds to layout() and update().
//
//   class Method {
//    public:
//     static constexpr kvasir_desc kDesc = …;
//     explicit Method(const sdk::Options& options);
//     void bind(const kvasir_geometry& geometry);   // then the two sizes below are known
//     uint64_t record_bytes() const;
//     uint64_t format() const;                      // kvasir_layout.format
//     uint64_t build_scratch_bytes() const;
//     uint64_t score_scratch_bytes(uint32_t group_size) const;
//     void build(const sdk::HeadKeys& keys, std::byte* record, void* scratch) const;
//     void score(const sdk::ScoreTask& task, void* scratch) const;
//     bool sums() const;  // optional: score() knows task.summed. Else its scores are added up
//   };
//   … sdk::entry<sdk::BlockRepresentative<Method>>(host, request, err)
//
// build() and score() run on several threads at once; scratch is 64-byte aligned, one per thread.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/leased_keys.h>
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace kvasir::sdk {

// Scores of n records, record_stride bytes apart, for the queries of one group:
// out[g * out_stride + i] = score of record i for query g; summed: out[i] = their sum over g.
struct ScoreTask {
  const float* q;  // [group_size][head_dim]
  uint32_t group_size;
  uint32_t n;
  const std::byte* records;
  uint64_t record_stride;
  float* out;
  uint64_t out_stride;
  bool summed;            // only where sums()
  const std::byte* next;  // the records that come after these, or null: worth a prefetch
};

namespace detail {

constexpr kvasir_desc with_summed_scores(kvasir_desc desc) {
  desc.provides |= KVASIR_PROVIDE_SUMMED_SCORES;
  return desc;
}

}  // namespace detail

template <class Method>
class BlockRepresentative {
 public:
  static constexpr kvasir_desc kDesc = detail::with_summed_scores(Method::kDesc);

  BlockRepresentative(const Host& host, const Options& options) : host_(host), method_(options) {}

  void validate(const kvasir_geometry& geometry) const {
    if constexpr (requires { &Method::validate; }) method_.validate(geometry);
  }

  void bind(const kvasir_geometry& geometry) {
    n_q_heads_ = geometry.n_q_heads;
    n_kv_heads_ = geometry.n_kv_heads;
    head_dim_ = geometry.head_dim;
    keys_ = LeasedKeys(geometry);
    method_.bind(geometry);
  }

  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_SEALED_ONLY;
    out.record_bytes = (method_.record_bytes() + 3) / 4 * 4;
    out.format = method_.format();
  }

  void update(const Step& step, const UpdateItems& items) const {
    host_.parallel_for(
        items.size() * n_kv_heads_, 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
          const Scratch<std::byte> scratch(host_, worker, method_.build_scratch_bytes());
          for (uint64_t i = begin; i < end; ++i) {
            const kvasir_update_item& item = items[i / n_kv_heads_];
            const auto kv_head = static_cast<uint32_t>(i % n_kv_heads_);
            if (item.flags & KVASIR_ITEM_SEALED) {
              method_.build(keys(item, kv_head),
                            step.record_to_write(item.seq, kv_head, item.block), scratch.data());
            }
          }
        });
  }

  void score(const Step& step, const kvasir_score_in& in, kvasir_score_out& out) const {
    const Wanted wanted = check(step, in, out);
    for_each_chunk(step, wanted, false, score_scratch_bytes(wanted),
                   [&](const Chunk& chunk, std::byte* scratch) {
                     score_places(step, wanted, list_of(chunk.seq, chunk.first_head), chunk.begin,
                                  chunk.end, scratch);
                   });
  }

 protected:
  const Host& host() const { return host_; }
  Method& method() { return method_; }
  const Method& method() const { return method_; }
  uint32_t n_q_heads() const { return n_q_heads_; }
  uint32_t n_kv_heads() const { return n_kv_heads_; }
  uint32_t group_size() const { return n_q_heads_ / n_kv_heads_; }
  // The list of a kv head of a sequence, as score_places() and queries() take it.
  uint32_t list_of(uint32_t seq, uint32_t kv_head) const { return seq * n_kv_heads_ + kv_head; }

  // What score() is asked for; list i is (sequence i / n_kv_heads, kv head i % n_kv_heads).
  struct Wanted {
    const kvasir_view& q;
    const uint64_t* offsets;
    float* value;
    uint32_t n_heads;  // per kv head
    bool summed;
    uint64_t longest;  // candidates of the longest list

    float* scores(uint32_t list) const { return value + offsets[uint64_t{list} * n_heads]; }
  };

  Wanted check(const Step& step, const kvasir_score_in& in, const kvasir_score_out& out) const {
    check_query(step, in.q);
    const bool summed = in.flags & KVASIR_SCORE_SUMMED;
    Wanted wanted{
        in.q, out.offsets, floats(out.value, "the scores"), summed ? 1 : group_size(), summed, 0};
    for (uint32_t i = 0; i < step.n_seqs() * n_kv_heads_; ++i)
      wanted.longest = std::max(wanted.longest, check_list(step, wanted, i));
    return wanted;
  }

  // Candidates [begin, end) of n_heads kv heads of one sequence, which have the same.
  struct Chunk {
    uint32_t seq, first_head, n_heads;
    uint64_t begin, end;
  };

  // fn(chunk, scratch) for all candidates, in parallel: chunks of one kv head, or of all where
  // `together` asks for it, they have the same candidates, and enough chunks are left for the
  // workers. The host spreads records over memory nodes by kv head, as an even split spreads the
  // tasks; there chunks are of one. Elsewhere a worker takes several at a time, those of all heads
  // as one: the records behind a task are in its cache.
  template <class Fn>
  void for_each_chunk(const Step& step, const Wanted& wanted, bool together, uint64_t scratch_bytes,
                      const Fn& fn) const {
    const uint64_t enough = uint64_t{4} * host_.max_workers();
    const uint64_t n_of_all = step.n_seqs() * ((wanted.longest + kChunk - 1) / kChunk);
    const bool all =
        together && step.heads_share_candidates() && !host_.spans_nodes() && n_of_all >= enough;
    const uint64_t size = all ? n_of_all / enough * kChunk : kChunk;
    const uint64_t n_chunks = (wanted.longest + size - 1) / size,
                   per_group = step.n_seqs() * n_chunks;
    const uint32_t n_heads = all ? n_kv_heads_ : 1;
    const uint64_t n_tasks = n_kv_heads_ / n_heads * per_group;
    const uint64_t grain = host_.spans_nodes() ? 0 : std::max<uint64_t>(n_tasks / enough, 1);
    host_.parallel_for(n_tasks, grain, [&](uint64_t first, uint64_t last, uint32_t worker) {
      const Scratch<std::byte> scratch(host_, worker, scratch_bytes);
      for (uint64_t task = first; task < last; ++task) {
        const auto head = static_cast<uint32_t>(task / per_group) * n_heads;
        const auto seq = static_cast<uint32_t>(task % per_group / n_chunks);
        const uint64_t begin = task % n_chunks * size,
                       end = std::min(begin + size, step.candidates(seq, head).size());
        if (begin < end) fn(Chunk{seq, head, n_heads, begin, end}, scratch.data());
      }
    });
  }

  // Candidates [begin, end) of one list, in runs of records that lie side by side, at most kChunk:
  // so many have scratch.
  void score_places(const Step& step, const Wanted& wanted, uint32_t list, uint64_t begin,
                    uint64_t end, std::byte* scratch) const {
    const uint32_t seq = list / n_kv_heads_, kv_head = list % n_kv_heads_;
    const Candidates from = step.candidates(seq, kv_head);
    const uint32_t page_blocks = step.raw().slab->page_blocks;
    ScoreTask task{};
    task.q = queries(wanted, list);
    task.group_size = group_size();
    task.record_stride = step.raw().slab->record_bytes;
    task.out_stride = from.size();
    task.summed = wanted.summed;
    task.next = step.record(seq, kv_head, from[begin]);
    for (uint64_t i = begin; i < end; i += task.n) {
      const uint64_t left_of_page = page_blocks - from[i] % page_blocks;
      task.n = static_cast<uint32_t>(from.run_from(i, std::min({end - i, left_of_page, kChunk})));
      task.records = task.next;
      const uint64_t after = i + task.n;
      task.next = after < from.size() ? step.record(seq, kv_head, from[after]) : nullptr;
      task.out = wanted.scores(list) + i;
      score_run(task, scratch);
    }
  }

  // Of the group, [group_size][head_dim].
  const float* queries(const Wanted& wanted, uint32_t list) const {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(wanted.q.data) +
                                          list / n_kv_heads_ * wanted.q.stride[0] +
                                          list % n_kv_heads_ * group_size() * wanted.q.stride[1]);
  }

  uint64_t score_scratch_bytes(const Wanted& wanted) const {
    const bool adds = wanted.summed && !method_sums();
    return score_bytes() + (adds ? group_size() * kChunk * sizeof(float) : 0);
  }

  // Least candidates per task: 64 KiB of f16 records at head_dim 128, far above what a hand-over
  // costs.
  static constexpr uint64_t kChunk = 256;

  // Keys of one kv head of an item's block.
  HeadKeys keys(const kvasir_update_item& item, uint32_t kv_head) const {
    return keys_.keys(item.lease, kv_head, item.block, item.n_tokens);
  }

 private:
  void check_query(const Step& step, const kvasir_view& q) const {
    if (q.mem_kind > KVASIR_MEM_PINNED || q.dtype != KVASIR_DTYPE_F32 || q.rank != 3 ||
        q.shape[0] < step.n_seqs() || q.shape[1] != n_q_heads_ || q.shape[2] != head_dim_ ||
        q.stride[1] != static_cast<int64_t>(head_dim_ * sizeof(float))) {
      fail_invalid("score: q must be f32 [" + std::to_string(step.n_seqs()) + "][" +
                   std::to_string(n_q_heads_) + "][" + std::to_string(head_dim_) +
                   "], each query contiguous, in host memory");
    }
  }

  // Number of candidates of list (sequence, kv head); the query heads of a group share them.
  uint64_t check_list(const Step& step, const Wanted& wanted, uint32_t list) const {
    const uint64_t n = step.candidates(list / n_kv_heads_, list % n_kv_heads_).size();
    const uint64_t* offsets = wanted.offsets + uint64_t{list} * wanted.n_heads;
    for (uint32_t g = 0; g < wanted.n_heads; ++g) {
      if (offsets[g + 1] - offsets[g] != n)
        fail_invalid("score: offsets do not fit the candidates");
    }
    return n;
  }

  void score_run(const ScoreTask& task, std::byte* scratch) const {
    if (!task.records) return no_record(task);
    if (!task.summed || method_sums()) return method_.score(task, scratch);
    ScoreTask each = task;
    each.summed = false;
    each.out = reinterpret_cast<float*>(scratch + score_bytes());
    each.out_stride = task.n;
    method_.score(each, scratch);
    for (uint32_t i = 0; i < task.n; ++i) {
      task.out[i] = each.out[i];
      for (uint32_t g = 1; g < task.group_size; ++g) task.out[i] += each.out[g * task.n + i];
    }
  }

  bool method_sums() const {
    if constexpr (requires { method_.sums(); }) return method_.sums();
    return false;
  }
  uint64_t score_bytes() const {  // the method's
    return (method_.score_scratch_bytes(group_size()) + 63) / 64 * 64;
  }
  // A block that was never summarised ranks below all others.
  static void no_record(const ScoreTask& task) {
    for (uint32_t g = 0; g < (task.summed ? 1 : task.group_size); ++g) {
      std::fill_n(task.out + g * task.out_stride, task.n, std::numeric_limits<float>::lowest());
    }
  }

  Host host_;
  Method method_;
  uint32_t n_q_heads_ = 0;
  uint32_t n_kv_heads_ = 0;
  uint32_t head_dim_ = 0;
  LeasedKeys keys_;
};

}  // namespace kvasir::sdk
