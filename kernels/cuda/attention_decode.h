// Decode attention on the device: single queries against the keys of their lists, where they lie.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Partial results of the units of decode ranges, which attention_merge() merges:
//   o[q, h] = sum_i softmax_i(logit[q, h, i]) v[i],  lse[q, h] = ln sum_i exp(logit[q, h, i])
// over the keys of the unit that the query sees; logits as in AttentionShape. A unit without keys,
// or with all weights -inf, gets (0, -inf). head_dim and v_dim are at most kMaxHeadDim.
//
// Sums are f32, whatever K and V are stored in: online softmax (arXiv:1805.02867) within a warp,
// partial results of warps merged in a fixed order. A query's result does not depend on
// the other queries and ranges, nor on keys behind those it sees.
//
// Launch: one block of 128 threads per unit (query, split of 256 slots) and 8 query heads of the
// group; each warp takes tiles of 32 keys, lanes share a row by 16 bytes of f16. K and V rows are
// read once for up to 8 query heads. Shared memory: 16 KiB of partial sums per 4 heads, 4 KiB of
// rows and weights. Bound by memory: bytes of K and V, and 4 * (v_dim + 1) written and read per
// split and query head. Where K and V are f16 or bf16 and heads 64 or 128 wide the launch is that
// of attention_decode_tensor(). Queued in the stream; nothing is waited for.
void attention_decode(const AttentionCall& call, Stream stream);

// The rows (unit, query head) of prefill ranges whose partial lse is NaN, computed again: each by
// one block of threads, over all keys of its range. Where the launch does not take all of them the
// row stays marked.
void attention_repeat(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
