// Summaries of blocks of keys: per-channel minimum, maximum and sum, and how a query scores them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element_type.h"

namespace kvasir::kernels {

// New rows of one block, row t at k + t * token_stride, contiguous along the head; of any type.
struct KeyRows {
  const void* k = nullptr;
  uint64_t token_stride = 0;  // bytes
  size_t n = 0;
  size_t head_dim = 0;
  ElementType type = ElementType::kF32;
};

// Extends a minmax record [2, head_dim] (minima, then maxima) by the rows; with `first` the old
// contents do not count. Feeding rows in pieces equals feeding them at once. n = 0 changes nothing.
// An f16 record is rounded outwards and saturates at the largest finite value, so that the bound
// of score_min_max holds for every key that f16 can hold. A q8_0 record is rounded outwards, too,
// once: its rows are the whole block, `first` is true, and head_dim is a multiple of
// kGroupElements; numbers that are not finite make their group NaN.
//   record of record_type kF32, kF16 or kQ8_0
void update_min_max(const KeyRows& rows, bool first, ElementType record_type, void* record);

// sum[d] += sum_t k[t][d] in f32; with `first` the old contents do not count.   sum [head_dim]
void update_sum(const KeyRows& rows, bool first, float* sum);

// record[d] = sum[d] / n_tokens, rounded to the record's type.
//   record [head_dim], a multiple of group_elements(record_type)
void store_mean(const float* sum, size_t head_dim, size_t n_tokens, ElementType record_type,
                void* record);

// Records to be scored: record b at base + b * record_bytes, or at list[b].
struct Records {
  const void* base = nullptr;
  uint64_t record_bytes = 0;
  size_t n = 0;
  size_t head_dim = 0;
  ElementType type = ElementType::kF32;  // any
  // Where the records lie that are scored after these, or null: they are brought into the cache.
  const void* next = nullptr;
  const void* const* list = nullptr;  // then base, record_bytes and next are not looked at

  const void* record(size_t b) const {
    return list ? list[b] : static_cast<const uint8_t*>(base) + b * record_bytes;
  }
};

// Queries of one group.   q [n, head_dim] f32
struct ScoreQueries {
  const float* q = nullptr;
  size_t n = 0;
  // One score per record, the sum over the queries. It is linear in what a query is packed to, so
  // the packed queries are added and a record takes one dot product.
  bool summed = false;

  size_t n_scores() const { return summed ? 1 : n; }
};

// The vectors whose dot products with a record are its scores, as score_dot() and score_min_max()
// make them.   weights [queries.n_scores(), weight_stride] written to their width: head_dim, and
// 2 * head_dim of minima and maxima
void dot_weights(const ScoreQueries& queries, size_t head_dim, float* weights,
                 size_t weight_stride);
void min_max_weights(const ScoreQueries& queries, size_t head_dim, float box_scale, float* weights,
                     size_t weight_stride);

// Bytes of scratch for either score, 64-byte aligned by the caller.
size_t score_scratch_bytes(size_t n_queries, size_t head_dim);

// score[g * score_stride + b] = sum_d q[g][d] * record_b[d]: mean, max or single-key records.
// Unscaled. Bound by memory: every record is read once for all queries.
//   records [n, head_dim]; score [queries.n_scores(), score_stride] f32, written
void score_dot(const ScoreQueries& queries, const Records& records, float* score,
               size_t score_stride, void* scratch);

// score[g * score_stride + b] = sum_d max(q[g][d] * min_b[d], q[g][d] * max_b[d]): an upper bound
// of q.k over the keys of block b, up to the rounding of an f32 sum (Quest, arXiv:2406.10774).
// With box_scale a below 1, of the box whose sides are a times as long about the same centre:
// a = 0 is q . (min_b + max_b) / 2. Computed as a dot product with the record [min, max] of
//   [(1 + a) min(q, 0) + (1 - a) max(q, 0), (1 + a) max(q, 0) + (1 - a) min(q, 0)] / 2.
//   box_scale in [0, 1]; records [n, 2, head_dim]; the rest as for score_dot
void score_min_max(const ScoreQueries& queries, float box_scale, const Records& records,
                   float* score, size_t score_stride, void* scratch);

}  // namespace kvasir::kernels
