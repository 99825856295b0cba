// Decode attention with the bulk copies of Hopper.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Whether the rows of K and V may be copied in bulk: all in f16, or all in bf16, of a multiple of
// 16 bytes.
bool copies_in_bulk(const AttentionCall& call);

// What attention_decode() defines, in the same order of sums: for calls of which copies_in_bulk().
//
// Each warp has a buffer of 32 rows of K and one of V in shared memory, and a barrier for each: one
// is filled while the other is read, and rows that follow one another in memory travel in one copy.
// Rows whose address is no multiple of 16 are copied by the lanes. Shared memory of a block:
// 256 * (head_dim + v_dim) bytes of rows, which later hold the partial sums, and 0.5 KiB of weights
// per head. Queued in the stream.
void attention_decode_bulk(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
