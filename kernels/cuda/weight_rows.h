// Rows of weights, as GGUF's types lie, expanded to bf16 for products on tensor cores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir::cuda {

// to[r][i] = bf16(from[r][i]), to nearest, ties to even. Rows of activations in f32 are rounded by
// the same call.
//   from  [n_rows] rows of n_in elements of `type`, row_bytes from row to row; even addresses (f32:
//         multiples of 4). n_in is a multiple of the type's block
//   to    bf16 [n_rows, n_in], an even address; does not overlap
//
// Launch: a thread for 8 elements, blocks of 256. Reads and writes each byte once: bound by memory.
// Queued in the stream.
void expand_to_bf16(WeightType type, uint64_t from, uint64_t row_bytes, uint64_t n_rows,
                    uint32_t n_in, uint64_t to, Stream stream);

}  // namespace kvasir::cuda
