// See device_products.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/cuda/device_products.h"

#include <algorithm>

#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/weight_product.h"
#include "kernels/cuda/weight_rows.h"

namespace kvasir {

DeviceProducts::DeviceProducts(cuda::Stream stream, const ProductScratch& scratch)
    : stream_(stream), scratch_(scratch) {
  if (scratch.workspace) matrices_.emplace(stream, reinterpret_cast<void*>(scratch.workspace));
}

void DeviceProducts::multiply(uint64_t x, uint32_t n, std::span<const Product> products) {
  if (n == 0 || products.empty()) return;
  const bool few = is_few(n);
  const uint32_t n_in = products.front().w->n_in;
  if (!few)
    cuda::expand_to_bf16(cuda::WeightType::kF32, x, uint64_t{4} * n_in, n, n_in, scratch_.rounded,
                         stream_);
  for (const Product& product : products) {
    if (few)
      multiply_few(x, n, product);
    else
      multiply_many(n, product);
  }
}

bool DeviceProducts::is_few(uint32_t n) const { return n <= cuda::kMostProductRows || !matrices_; }

void DeviceProducts::multiply_gated(uint64_t x, uint32_t n, const MatrixOnDevice& gate,
                                    const MatrixOnDevice& up, cuda::GateKind kind, uint64_t act,
                                    uint64_t up_out) {
  if (is_few(n) && gate.type == up.type) return multiply_few(x, n, {&gate, act}, &up, kind);
  const Product both[] = {{&gate, act}, {&up, up_out}};
  multiply(x, n, both);
  cuda::apply_gate(kind, act, up_out, uint64_t{n} * gate.n_out, stream_);
}

void DeviceProducts::multiply_few(uint64_t x, uint32_t n, const Product& p,
                                  const MatrixOnDevice* up, cuda::GateKind kind) {
  const MatrixOnDevice& w = *p.w;
  for (uint32_t first = 0; first < n; first += cuda::kMostProductRows) {
    const uint32_t rows = std::min(cuda::kMostProductRows, n - first);
    cuda::weight_product(
        {x + uint64_t{4} * first * w.n_in, w.rows, p.bias, p.y + uint64_t{4} * first * w.n_out,
         w.row_bytes, rows, w.n_in, w.n_out, w.type, p.accumulates, up ? up->rows : 0, kind},
        stream_);
  }
}

void DeviceProducts::multiply_many(uint32_t n, const Product& p) {
  const MatrixOnDevice& w = *p.w;
  const bool is_ready = w.type == cuda::WeightType::kBF16;
  const uint64_t outputs = is_ready ? w.n_out : scratch_.tile_bytes / (uint64_t{2} * w.n_in);
  for (uint32_t first = 0; first < w.n_out; first += static_cast<uint32_t>(outputs)) {
    const auto n_out = static_cast<uint32_t>(std::min<uint64_t>(outputs, w.n_out - first));
    const uint64_t rows = w.rows + first * w.row_bytes;
    if (!is_ready)
      cuda::expand_to_bf16(w.type, rows, w.row_bytes, n_out, w.n_in, scratch_.tile, stream_);
    matrices_->multiply({scratch_.rounded, is_ready ? rows : scratch_.tile,
                         p.y + uint64_t{4} * first, n, w.n_in, n_out, w.n_out, p.accumulates});
  }
  if (p.bias) cuda::add_bias(p.bias, n, w.n_out, p.y, stream_);
}

}  // namespace kvasir
