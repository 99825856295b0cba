// Products of many rows in bf16 on tensor cores: cuBLAS on the device, plain loops in the
// emulation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// y[r, o] = sum_i x[r, i] w[o, i] (+ y[r, o])
//   x  bf16 [n_rows, n_in]
//   w  bf16 [n_out, n_in]
//   y  f32  [n_rows, y_stride], of which n_out columns are written; does not overlap
struct MatrixProduct {
  uint64_t x, w, y;
  uint32_t n_rows, n_in, n_out;
  uint64_t y_stride;
  bool accumulates;
};

class MatrixProducts {
 public:
  // The work of all its products goes into this stream.   workspace: device memory of
  // workspace_bytes(), which must outlive this. Throws Error.
  MatrixProducts(Stream stream, void* workspace);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  // The library allocates no device memory beside it, apart from what it keeps per process.
  static uint64_t workspace_bytes();

  // Sums are f32. A row may differ in its last bits with the number of rows. Queued.
  void multiply(const MatrixProduct& product);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace kvasir::cuda
