// RMSNorm of rows: the activations of tokens, or the heads of tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// y[r, i] = x[r, i] weight[i] / sqrt(mean_i(x[r, i]^2) + eps) (+ y[r, i]). arXiv:1910.07467.
//   x       f32 [n_rows, width]
//   weight  f32 [width]
//   y       f32 [n_rows, width]; may be x where nothing is added
struct RmsNorm {
  uint64_t x, weight, y;
  uint64_t n_rows;
  uint32_t width;
  float eps;
  bool adds;  // to what y holds: norms behind attention and feed-forward
};

// Launch: a block of 256 threads per row, of 32 up to 512 elements. Reads a row twice, the second
// time from the cache. Queued in the stream.
void rms_norm(const RmsNorm& norm, Stream stream);

}  // namespace kvasir::cuda
