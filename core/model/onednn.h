// The matrix products we take from oneDNN: single-threaded, called by our own workers side by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvasir {

// y [n, cols] = x [n, n_in] w [n_in, cols], plus what y held when `accumulate`. Rows of x are n_in
// apart, of y y_stride, of w 64.
struct PanelShape {
  uint32_t n, n_in, cols, y_stride;
  bool accumulate;
};

void onednn_f32(const PanelShape& shape, const float* x, const float* w, float* y);

// bf16 inputs, f32 sums and results. multiply() may be called by all workers at once.
class OneDnnBf16 {
 public:
  explicit OneDnnBf16(uint32_t n_workers);
  ~OneDnnBf16();
  static bool supported();  // a product can be created, and is not the slow reference code
  void multiply(const PanelShape& shape, const uint16_t* x, const void* w, float* y,
                uint32_t worker);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
