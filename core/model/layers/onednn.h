// The matrix products we take from oneDNN: single-threaded, called by our own workers side by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/model/layers/compute.h"

namespace kvasir {

// Inputs of a panel are padded with zeros to a multiple of this: what oneDNN's blocks hold.
inline constexpr uint32_t kPanelInputs = 32;

// y [n, cols] = x [n, n_in] w, plus what y held when `accumulate`. Rows of x are n_in apart, of y
// y_stride; w is a panel of kernels/panel_product.h, padded to kPanelInputs.
struct PanelShape {
  uint32_t n, n_in, cols, y_stride;
  bool accumulate;
};

// Inputs that oneDNN 2.6 sums in one chain before it adds the chains up: what our own kernel must
// do to give the same bits. PanelProducts compares the two before it relies on it.
constexpr uint32_t chain_inputs(uint32_t n_in) { return n_in <= 1024 ? 512 : 1024; }

class OneDnnProducts {
 public:
  // The library's version and the instructions that it uses here: another of either may sum in
  // another order.
  static std::string library();
  // supported(compute) must hold.
  OneDnnProducts(Compute compute, uint32_t n_workers);
  ~OneDnnProducts();
  // Whether oneDNN has a fast product of this type over panels: f32 needs AVX-512, bf16 AVX-512
  // BF16 or AMX.
  static bool supported(Compute compute);
  // x f32 or bf16 after `compute`. May be called by all workers at once.
  void multiply(const PanelShape& shape, const void* x, const void* w, float* y, uint32_t worker);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
