// Prefill attention whose two products are made of bf16 pairs, at nearly twice the rate of f32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/attention_prefill.h"

namespace kvasir::kernels {

// True where this CPU has dot products of bf16 pairs (AVX512-BF16), the SIMD target in use may have
// them, and K and V of `shape` are stored in f16 or bf16.
bool has_attention_prefill_bf16(const AttentionShape& shape);

// Bytes of scratch for attention_prefill_bf16, 64-byte aligned by the caller.
size_t attention_prefill_bf16_scratch_bytes(const AttentionShape& shape, size_t n_q);

// What attention_prefill computes, with Q (scaled), K, P = exp(logit - max) and V rounded to bf16
// where they are multiplied. Logits, maxima, sums and o are f32; the sum of P that o is divided by
// is that of P before it was rounded. With u = 2^-8 the unit roundoff of bf16, to first order,
//   |logit error| <= 2 u softmax_scale sum_d |q_d k_d|     (u where K is stored in bf16)
//   |o error|     <= max |logit error| * 2 max |v| + 2 u sum_t p_t |v_t|    (u: V in bf16)
// Only where has_attention_prefill_bf16().
//
// A query's result is the same bits whatever queries share the call, and whatever keys it does not
// see lie behind or between those it sees: tiles, and the pairs of keys in them, begin at fixed
// places of `items`, every sum runs in the order of the keys, and a key that is not seen adds
// exactly nothing.
//
// With `in_tiles` products are made in tiles of AMX, within the same bounds but with other bits: a
// tile adds up even and odd elements by themselves. It is uses_bf16_tiles() of simd_target.h, asked
// once for many calls: in a virtual machine that takes microseconds.
//
// Bound by arithmetic: 72 to 79 % of the rate of the instruction on one core of a Zen 5 at head_dim
// 64 to 256 and 1.9 times the rate of attention_prefill (CPU time, beside other work).
void attention_prefill_bf16(const AttentionShape& shape, const QueryTile& queries,
                            std::span<const KvRows> items, void* scratch, bool in_tiles);

}  // namespace kvasir::kernels
