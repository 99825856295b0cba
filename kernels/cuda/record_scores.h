// How a query scores summaries of blocks on the device, where they lie in pages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/block_records.h"

namespace kvasir::cuda {

// Candidates that one block of threads scores: 32 KiB of minmax records of 128 channels in f16.
inline constexpr uint32_t kUnitRecords = 64;

// The candidates of one sequence and kv head, and what their scores are written to. The record of
// block b lies at
//   pages[b / page_blocks] + (kv_head * page_blocks + b % page_blocks) * record_bytes.
struct ScoreList {
  uint64_t first_unit;  // units of the lists before it
  uint64_t pages;       // u64 [n_pages], of the sequence; 0: a page that holds no record
  uint64_t candidates;  // u32 [n], blocks; 0: n blocks from first_block on
  uint64_t q;           // f32 [group_size][head_dim]
  uint64_t score;       // f32 [group_size][n], with is_summed [n]
  uint32_t n, first_block;
  uint32_t n_pages, kv_head;
};

struct ScoreCall {
  uint64_t lists;    // ScoreList [n_lists]
  uint64_t n_units;  // of all lists, score_units(n) each
  uint32_t n_lists, group_size, head_dim, page_blocks;
  uint64_t record_bytes;  // from one record to the next; a multiple of the element's size
  RecordKind kind;
  KvType record_type;  // kF32 or kF16
  uint32_t is_summed;  // 1: one score per candidate, the sum of those of the query heads
  float box_scale;     // of minmax records, in [0, 1]
};

inline uint64_t score_units(uint64_t n) { return (n + kUnitRecords - 1) / kUnitRecords; }

// score[g][i] of candidate i for query head g of the group, unscaled:
//   mean    sum_d q[g][d] * record[d]
//   minmax  sum_d max(q[g][d] * min[d], q[g][d] * max[d]), an upper bound of q.k over the block up
//           to the rounding of an f32 sum (Quest, arXiv:2406.10774); with box_scale a below 1 of
//           the box whose sides are a times as long about the same centre.
// Computed as in kernels/representative.h: a dot product with a packed query, summed queries packed
// to one. f32; the order of a sum depends on head_dim, kind and the number of heads alone. A
// candidate whose page is missing gets -FLT_MAX, below all others. head_dim <= kMaxHeadDim.
//
// Launch: one block of 128 threads per unit and 8 query heads of the group. The lanes of a warp
// share a record by 16 bytes of f16, and read it once for those heads; packed queries lie in shared
// memory, 4 bytes per head and element (at most 16 KiB). Bound by memory: records are read once for
// 8 heads. Queued in the stream.
void score_records(const ScoreCall& call, Stream stream);

}  // namespace kvasir::cuda
