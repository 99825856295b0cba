// Few rows times a weight matrix that stays as GGUF's types lie: the products of decoding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/gate_kind.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir::cuda {

inline constexpr uint32_t kMostProductRows = 8;

// y[r, o] = sum_i x[r, i] w[o, i] + bias[o] (+ y[r, o])
//   x     f32 [n_rows, n_in], a multiple of 4
//   w     [n_out] rows of n_in elements of `type`, row_bytes from row to row; even addresses (f32:
//         multiples of 4). n_in is a multiple of the type's block
//   bias  f32 [n_out], or 0
//   y     f32 [n_rows, n_out], does not overlap
struct WeightProduct {
  uint64_t x, w, bias, y;
  uint64_t row_bytes;
  uint32_t n_rows, n_in, n_out;  // n_rows at most kMostProductRows
  WeightType type;
  bool accumulates;
  // Another matrix of the same shape and type, or 0: y[r, o] = act(x w) * (x up) of the two
  // products, without bias and sum.
  uint64_t up = 0;
  GateKind gate = GateKind::kSilu;
};

// Weights are the numbers of the file and sums are f32, in an order that does not depend on n_rows:
// a row has the same bits in any company. Launch: a warp per two outputs of one row or four of
// several, blocks of 4 warps that share x; each weight is read once for all rows: of one row bound
// by the memory's bandwidth. Queued in the stream.
void weight_product(const WeightProduct& product, Stream stream);

}  // namespace kvasir::cuda
