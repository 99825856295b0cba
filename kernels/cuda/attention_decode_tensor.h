// Decode attention over K and V in f16 or bf16 by products of tensor cores: the results of
// attention_decode(), of which it is a part.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Where K and V are all f16 or all bf16, and head_dim and v_dim both 64 or both 128.
bool attends_in_products(const AttentionCall& call);

// Where attends_in_products(). K Q^T and V^T P^T of 16 keys (m16n8k16) with K and V as they lie:
// lanes load 16 bytes of rows and multiply them without a way through shared memory, since the
// elements of a row may be summed in any order. Queries and weights are f32: a column of a product
// has a part of them, of 11 bits in f16 (two columns per query head) and of 8 in bf16 (three), so
// that their products are as exact as f32. Queries of f16 are brought to [2^14, 2^15) by a power of
// two per head, weights multiplied by 2^14: parts that are subnormal are lost below 2^-38 of the
// largest. Sums are f32, as tensor cores make them.
//
// Launch: one block of 128 threads per unit (query, split of 256 slots) and 4 query heads of the
// group, or 8 of f16; each warp takes 64 slots in order. Rows of keys that nobody sees are not
// read.
void attention_decode_tensor(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
