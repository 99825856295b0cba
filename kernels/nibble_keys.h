// Keys of four bits per element, and what queries make of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// A key in memory, at any address that floats may have:
//   float low, step; uint8_t nibbles[(head_dim + 7) / 8 * 4]
// element d = low + step * nibble d; nibble d is the lower half of byte d / 2 when d is even, else
// the upper half.
size_t nibble_key_bytes(size_t head_dim);

// Bytes of scratch for score_nibble_keys, 64-byte aligned by the caller.
size_t nibble_score_scratch_bytes(size_t n_heads, size_t head_dim);

// score[g * score_stride + i] = sum_d q[g][d] * (element d of key i). Unscaled. Every key is
// decoded once for all heads.
//   q [n_heads, head_dim] f32; keys [n] pointers; score [n_heads, score_stride] f32, written
void score_nibble_keys(const float* q, size_t n_heads, size_t head_dim, const void* const* keys,
                       size_t n, float* score, size_t score_stride, void* scratch);

}  // namespace kvasir::kernels
