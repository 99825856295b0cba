// Rotation of pairs of elements by given angles: the arithmetic of rotary position embedding,
// arXiv:2104.09864, as kernels/rope.h does it on the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// The two elements (a, b) of pair i of every head of token t become
// (a cos[t, i] - b sin[t, i], a sin[t, i] + b cos[t, i]).
//
//   cos, sin  f32 [n_tokens, n_pairs]
//   x         f32 [n_tokens, n_heads, head_dim], head_dim >= 2 n_pairs; changed in place, but for
//             elements from 2 n_pairs on
//
// is_interleaved: pair i is elements 2i and 2i + 1, else i and i + n_pairs. Each element is one
// product and one fused multiply-add: the bits of the host where that fuses them.
struct RowRotation {
  uint64_t cos, sin, x;
  uint32_t n_tokens, n_heads, head_dim, n_pairs;
  bool is_interleaved;
};

// Launch: a block of 256 threads per token, a pair per thread and turn. Bound by memory. Queued in
// the stream.
void rotate_rows(const RowRotation& rotation, Stream stream);

}  // namespace kvasir::cuda
