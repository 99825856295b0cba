// See summary_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu/summary_bench.h"

#include <cstdio>
#include <vector>

#include "kernels/cuda/record_scores.h"
#include "kernels/cuda/stream_read.h"
#include "kernels/cuda/top_k.h"
#include "tools/gpu/bench.h"

namespace kvasir::bench {
namespace {
using namespace kvasir::cuda;

constexpr uint32_t kBlockSize = 128, kHeadDim = 128, kGroup = 4, kKvHeads = 8;

void print_row(const char* name, const SummaryCase& c, double bytes, double seconds,
               double bandwidth) {
  std::printf("%-22s %-10s %6u %8u %10.1f %10.3f %10.0f %9.1f %%\n", name, "", c.batch, c.context,
              bytes / 1e6, seconds * 1e3, bytes / seconds / 1e9,
              100.0 * bytes / seconds / bandwidth);
}

// One page of all blocks per sequence: [kv_head][block].
struct Run {
  const SummaryCase& c;
  RecordKind kind;
  uint32_t n_blocks = c.context / kBlockSize;
  uint64_t row = kHeadDim * 2, record_bytes = row * (kind == RecordKind::kMinMax ? 2 : 1);
  uint64_t n_records = uint64_t{c.batch} * kKvHeads * n_blocks;
  Memory keys{n_records * kBlockSize * row}, records{n_records * record_bytes};
  Memory q{std::vector<float>(uint64_t{c.batch} * kKvHeads * kGroup * kHeadDim, 0.1f)};
  Memory scores{n_records * kGroup * sizeof(float)};

  double build(uint32_t n_runs) const {
    fill_words(keys.data, n_records * kBlockSize * row / 4, kHalfPair, kRandomHalfPair, {});
    std::vector<RecordBlock> list;
    for (uint64_t i = 0; i < n_records; ++i)
      list.push_back({keys.address() + i * kBlockSize * row, row,
                      records.address() + i * record_bytes, kBlockSize, KvType::kF16});
    const Memory sent(list);
    const RecordBuild call{sent.address(), static_cast<uint32_t>(n_records),
                           kHeadDim,       KvType::kF16,
                           kind,           KvType::kF16};
    return seconds_in_a_row([&](uint32_t) { build_records(call, {}); }, n_runs);
  }
  double score(bool is_summed, uint32_t n_runs) const {
    std::vector<uint64_t> pages;
    for (uint32_t s = 0; s < c.batch; ++s)
      pages.push_back(records.address() + s * kKvHeads * n_blocks * record_bytes);
    const Memory page_list(pages);
    std::vector<ScoreList> lists;
    for (uint32_t i = 0; i < c.batch * kKvHeads; ++i)
      lists.push_back({i * score_units(n_blocks), page_list.address() + 8 * (i / kKvHeads), 0,
                       q.address() + uint64_t{4} * i * kGroup * kHeadDim,
                       scores.address() + uint64_t{4} * i * kGroup * n_blocks, n_blocks, 0, 1,
                       i % kKvHeads});
    const Memory sent(lists);
    const ScoreCall call{sent.address(),
                         lists.size() * score_units(n_blocks),
                         static_cast<uint32_t>(lists.size()),
                         kGroup,
                         kHeadDim,
                         n_blocks,
                         record_bytes,
                         kind,
                         KvType::kF16,
                         is_summed ? 1u : 0u,
                         1.0f};
    return seconds_in_a_row([&](uint32_t) { score_records(call, {}); }, n_runs);
  }
  double choose(uint32_t n_runs) const {
    const Memory index(uint64_t{c.batch} * kKvHeads * c.selected_blocks * sizeof(uint32_t));
    std::vector<TopKList> lists;
    for (uint32_t i = 0; i < c.batch * kKvHeads; ++i)
      lists.push_back({scores.address() + uint64_t{4} * i * kGroup * n_blocks,
                       index.address() + uint64_t{4} * i * c.selected_blocks, n_blocks,
                       c.selected_blocks, 0, 0});
    const Memory sent(lists);
    return seconds_in_a_row(
        [&](uint32_t) { top_k(sent.address(), static_cast<uint32_t>(lists.size()), {}); }, n_runs);
  }
};

}  // namespace

void print_summaries(const SummaryCase& c, double bandwidth, uint32_t n_runs) {
  for (const RecordKind kind : {RecordKind::kMinMax, RecordKind::kMean}) {
    const bool is_mean = kind == RecordKind::kMean;
    const Run run{c, kind};
    const auto key_bytes = static_cast<double>(run.n_records * kBlockSize * run.row);
    const auto bytes = static_cast<double>(run.n_records * run.record_bytes);
    print_row(is_mean ? "records, mean" : "records, minmax", c, key_bytes, run.build(n_runs),
              bandwidth);
    print_row(is_mean ? "scores, mean" : "scores, minmax", c, bytes, run.score(false, n_runs),
              bandwidth);
    print_row(is_mean ? "summed, mean" : "summed, minmax", c, bytes, run.score(true, n_runs),
              bandwidth);
    if (is_mean) continue;
    const auto score_bytes = static_cast<double>(uint64_t{c.batch} * kKvHeads * run.n_blocks * 4);
    print_row("top-k", c, score_bytes, run.choose(n_runs), bandwidth);
  }
}

}  // namespace kvasir::bench
