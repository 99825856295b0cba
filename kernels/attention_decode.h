// Decode attention: one query row of a group of query heads against the rows of their kv head, for
// some kv heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kv_rows.h"

namespace kvasir::kernels {

// One query row of a group, and the rows that it attends to.
struct DecodeHead {
  const float* q = nullptr;       // [group_size, head_dim] f32, contiguous
  std::span<const KvRows> items;  // each row is read once for the whole group
  float* o = nullptr;             // [group_size, v_dim] f32, written
  float* lse = nullptr;           // [group_size] f32, written, natural log
};
inline constexpr size_t kMostDecodeHeads = 8;

// Bytes of scratch for attention_decode with n_heads heads, 64-byte aligned by the caller.
size_t attention_decode_scratch_bytes(const AttentionShape& shape, size_t n_heads);

// In how many steps of the largest the SIMD target in use rounds a softmax weight times the scale
// of a value of this type where shape.in_integers allows it: 127, 255 (but in tiles with a negative
// scale, where it multiplies f32) or 32767; 0 where it always multiplies f32.
unsigned attention_decode_weight_steps(ElementType v_type);

// For each of 1 to kMostDecodeHeads heads
//   o[g] = sum_i softmax_i(logit[g, i]) v[i],  lse[g] = ln sum_i exp(logit[g, i])
// over all rows i of its items; logits as in AttentionShape. Without rows, or with all weights
// -inf, the result is (0, -inf). Causality is the caller's: it passes the rows the query may see.
//
// Online softmax over tiles of 128 rows (arXiv:1805.02867), f32 sums. Bound by memory: 2 *
// (head_dim + v_dim) * group_size operations per K and V row pair read.
//
// With shape.in_integers, where K or V is q8_0 or q4_0, on CPUs with VNNI and VBMI of AVX-512 (Ice
// Lake, Zen 4 and later), and with AVX2 where AVX-512 is absent or not allowed: over such K, q
// (scaled) is rounded to 1 / 254 of the largest element of its group of 32, as llama.cpp rounds it.
// Over such V, the product of a weight and the scale of a value's group is rounded
//   to 1 / 251 of c, the largest weight times the largest |scale| among 32 rows of a tile: 0 to 31,
//   32 to 63 and so on; over q8_0 with AVX-512 to 1 / 502 of it, and where one of the tile's scales
//   is negative not at all;
//   with AVX2 over q8_0, to 1 / 21844 of c, the same of the tile.
// So, with m = 251, 502 or 21844,
//   |logit error| <= sum of groups (max |q| / 254 * sum of |k|)
//   |o error| <= max |logit error| * 2 max |v| + sum of rows (c / m * |step|)
// where c has been divided by the sum of exp(logit - max). Errors of rows have random signs:
// rounded q apart, 1.5e-2 or 2e-4 of the largest output were seen over random numbers, of which
// thousands with like weights leave a small output. Other types have the bits that they have
// without.
//
// A head has the bits that it has alone. Heads take turns, tile by tile: where those of a block lie
// behind each other, memory is read front to back, which hardware prefetchers follow. K and V of
// 128K tokens, 8 heads of 128 in f16, blocks of 128: a seventh less time than head after head
// (measured on Sapphire Rapids).
void attention_decode(const AttentionShape& shape, std::span<const DecodeHead> heads,
                      void* scratch);

}  // namespace kvasir::kernels
