// Weight matrices in device memory, as they lie in the file, and the products of rows with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/cuda/gate_kind.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir {

struct MatrixOnDevice {
  cuda::WeightType type = cuda::WeightType::kF32;
  uint32_t n_in = 0, n_out = 0;
  uint64_t row_bytes = 0, rows = 0;  // address
};

// Scratch of products, in device memory.
struct ProductScratch {
  uint64_t rounded = 0;  // bf16 [max_tokens, widest input]
  uint64_t tile = 0, tile_bytes = 0;
  uint64_t workspace = 0;  // 0: products are exact
};

class DeviceProducts {
 public:
  DeviceProducts(cuda::Stream stream, const ProductScratch& scratch);

  struct Product {
    const MatrixOnDevice* w;
    uint64_t y;         // f32 [n, w->n_out]
    uint64_t bias = 0;  // f32 [w->n_out]; 0: none
    bool accumulates = false;
  };
  // y = x w + bias (+ y), all of the same x, f32 [n, n_in]. Few rows, or exact: by the weights as
  // they lie, in f32, eight rows at a time. Else x is rounded to bf16 once, and each matrix is
  // expanded to bf16 as many outputs at a time as the tile holds. Queued in the stream.
  void multiply(uint64_t x, uint32_t n, std::span<const Product> products);
  // act = activation(x gate) * (x up), by the same ways; few rows in one kernel.
  //   act, up_out  f32 [n, gate.n_out]; the second one is scratch
  void multiply_gated(uint64_t x, uint32_t n, const MatrixOnDevice& gate, const MatrixOnDevice& up,
                      cuda::GateKind kind, uint64_t act, uint64_t up_out);

 private:
  bool is_few(uint32_t n) const;
  // up: null, or the other matrix of a gated product.
  void multiply_few(uint64_t x, uint32_t n, const Product& product,
                    const MatrixOnDevice* up = nullptr, cuda::GateKind kind = {});
  void multiply_many(uint32_t n, const Product& product);

  cuda::Stream stream_;
  ProductScratch scratch_;
  std::optional<cuda::MatrixProducts> matrices_;
};

}  // namespace kvasir
