// Prefill attention: many queries of a group of query heads against the rows of their kv head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kv_rows.h"

namespace kvasir::kernels {

// Queries of one sequence and where their results go. Query i, head g of the group:
//   q + i * q_stride + g * head_dim,  o + i * o_stride + g * v_dim,  lse + i * lse_stride + g
// Strides in floats. mask.q_pos[i] is its position; positions stay below 2^31.
struct QueryTile {
  const float* q = nullptr;
  float* o = nullptr;
  float* lse = nullptr;
  size_t n_q = 0;
  size_t q_stride = 0;
  size_t o_stride = 0;
  size_t lse_stride = 0;
  PositionMask mask;
};

// Bytes of scratch for attention_prefill, 64-byte aligned by the caller.
size_t attention_prefill_scratch_bytes(const AttentionShape& shape, size_t n_q);

// The attention of attention_decode for every query of the tile, over the rows its position may
// see; a query that sees nothing gets (0, -inf). Written: o [n_q, group_size, v_dim] and
// lse [n_q, group_size], by the strides.
//
// Tiles of 128 K and V rows are converted to f32 once and stay in the L2 cache while rows of
// queries pass over them: online softmax (arXiv:2205.14135) between two register-blocked products.
// Tiles that no query of a piece sees are skipped, the diagonal is cut to what is seen.
// 2 * (head_dim + v_dim) operations per query head and key: bound by arithmetic from about 8
// queries on; below, attention_decode per query is the faster one.
void attention_prefill(const AttentionShape& shape, const QueryTile& queries,
                       std::span<const KvRows> items, void* scratch);

}  // namespace kvasir::kernels
