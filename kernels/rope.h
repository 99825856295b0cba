// Rotation of pairs of elements by given angles: the arithmetic of rotary position embedding,
// arXiv:2104.09864.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// Which two elements of a row turn together as its pair i.
enum class RopePairing {
  kInterleaved,  // 2i and 2i + 1
  kHalfSplit,    // i and i + n_pairs
};

// The two elements (a, b) of pair i become (a cos[i] - b sin[i], a sin[i] + b cos[i]) in every row;
// elements from 2 n_pairs on stay as they are.
//
//   cos, sin  [n_pairs]        f32, the same for all rows
//   x         [n_rows, width]  f32, width >= 2 n_pairs, rows row_stride apart; changed in place
//
// Each element is one product and one multiply-add, fused where the CPU fuses. So a row has the
// same bits whatever the number of rows, and a pair whatever the number of pairs.
void rotate_rows(RopePairing pairing, const float* cos, const float* sin, size_t n_pairs, float* x,
                 size_t n_rows, size_t row_stride);

}  // namespace kvasir::kernels
