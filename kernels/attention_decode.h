// Decode attention: one query row of a group of query heads against the rows of their kv head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kv_rows.h"

namespace kvasir::kernels {

// Bytes of scratch for attention_decode, 64-byte aligned by the caller; depends on the shape only.
size_t attention_decode_scratch_bytes(const AttentionShape& shape);

// o[g] = sum_i softmax_i(logit[g, i]) v[i],  lse[g] = ln sum_i exp(logit[g, i])
// over all rows i of `items`; logits as in AttentionShape. Without rows, or with all weights -inf,
// the result is (0, -inf). Causality is the caller's: it passes the rows the query may see.
//
//   q     [group_size, head_dim] f32, contiguous
//   items K and V rows; each row is read once for the whole group
//   o     [group_size, v_dim]    f32, written
//   lse   [group_size]           f32, written, natural log
//
// Online softmax over tiles of 128 rows (arXiv:1805.02867), f32 sums. Bound by memory: 2 *
// (head_dim + v_dim) * group_size operations per K and V row pair read.
void attention_decode(const AttentionShape& shape, const float* q, std::span<const KvRows> items,
                      float* o, float* lse, void* scratch);

}  // namespace kvasir::kernels
