// Prefill attention on the device: queries of a prompt against the keys of their lists.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Partial results (o, lse) of the units of prefill ranges, which attention_merge() merges: what
// attention_decode() defines, for the queries of call.tiles.
//
// prefill_product kF16, kBF16: Q, and P = exp(logit - max), are rounded to the type of K and V
// where they are multiplied; logits, maxima and sums are f32. With u the unit roundoff of the type
// (2^-11, 2^-8), to first order
//   |logit error| <= u softmax_scale sum_d |q_d k_d|
//   |o error|     <= max |logit error| * 2 max |v| + u sum_t p_t |v_t|
// kF32, for every type of K and V: products of tf32 pieces (10 bits behind the point) of which the
// larger three of four are added, which leaves 2^-21 of each product.
//
// A query's result depends on the query and the keys it sees, in item order, bit for bit; where K
// or V of another key in its tile, or Q, is not finite in the product's type, it is computed again
// in f32 by the way of attention_decode(), and then its last bits may differ.
//
// A launch that does not take the last slots of a range leaves the sums of its rows as they are in
// partial_o and row_state, and the launch of the next slots goes on from there.
//
// Launch: one block of 128 threads per tile of 64 rows (query, query head of the group), so that
// the heads of a group share what is read. K and V pass through shared memory in tiles of 16 to 64
// keys; f16 and bf16 rows travel there by asynchronous copies, the next tile while this one is
// multiplied (head_dim and v_dim up to 128), other types are expanded to f32 on the way. Each warp
// has 16 rows: online softmax (arXiv:2205.14135) between two products on tensor cores. A tile of
// keys that no row sees is neither read nor multiplied. Shared memory: at most 99 KiB. Where the
// call asks for Hopper's instructions and its shapes allow it: attention_prefill_panels().
// Then one block per unit and head, which returns at once unless the row is to be computed again.
// Queued in the stream.
void attention_prefill(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
