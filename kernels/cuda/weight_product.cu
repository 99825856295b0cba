// See weight_product.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_product.h"

#include <cmath>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/weight_chunk.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kProductWarps = 4, kProductThreads = kProductWarps * kWarpLanes;
constexpr uint32_t kChunksAhead = 4;  // loads of a lane that are on their way at once

// sums[r] += x[r] . w over one chunk, element after element.
template <uint32_t kRows>
KVASIR_DEVICE void add_chunk(const WeightProduct& p, uint32_t chunk, const float (&w)[kChunk],
                             float (&sums)[kRows]) {
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    if (r >= p.n_rows) continue;
    float x[kChunk];
    load_floats<KvType::kF32>(p.x + uint64_t{4} * r * p.n_in, chunk, p.n_in, x);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) sums[r] = fmaf(x[i], w[i], sums[r]);
  }
}

// sums[r] = x[r] . (the row of weights at `row`), in all lanes of the warp.
template <WeightType kType, uint32_t kRows>
KVASIR_DEVICE void multiply_row(const WeightProduct& p, uint64_t row, float (&sums)[kRows]) {
  const uint32_t n_chunks = (p.n_in + kChunk - 1) / kChunk;
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) sums[r] = 0.0f;
  for (uint32_t first = thread_x() % kWarpLanes; first < n_chunks;
       first += kChunksAhead * kWarpLanes) {
    WeightChunk<kType> raw[kChunksAhead];
    KVASIR_UNROLL
    for (uint32_t c = 0; c < kChunksAhead; ++c)  // loads nothing behind the row
      raw[c].load(row, first + c * kWarpLanes, p.n_in);
    KVASIR_UNROLL
    for (uint32_t c = 0; c < kChunksAhead; ++c) {
      if (first + c * kWarpLanes >= n_chunks) continue;
      float w[kChunk];
      raw[c].floats(w);
      add_chunk(p, first + c * kWarpLanes, w, sums);
    }
  }
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r)
    for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
      sums[r] += shuffle_xor(kAllLanes, sums[r], lanes);
}

template <WeightType kType, uint32_t kRows>
KVASIR_KERNEL void KVASIR_BOUNDS(kProductThreads) multiply_output(const WeightProduct p) {
  const uint32_t output = block_x() * kProductWarps + thread_x() / kWarpLanes;
  if (output >= p.n_out) return;  // a warp as a whole
  float sums[kRows], ups[kRows] = {};
  multiply_row<kType>(p, p.w + p.row_bytes * output, sums);
  if (p.up) multiply_row<kType>(p, p.up + p.row_bytes * output, ups);
  if (thread_x() % kWarpLanes != 0) return;
  const float bias = p.bias ? load_at<float>(p.bias + uint64_t{4} * output) : 0.0f;
  KVASIR_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    if (r >= p.n_rows) continue;
    const Global<float> y = global<float>(p.y + 4 * (uint64_t{r} * p.n_out + output));
    if (p.up)
      *y = activate(p.gate, sums[r]) * ups[r];
    else
      *y = p.accumulates ? *y + (sums[r] + bias) : sums[r] + bias;
  }
}

}  // namespace

void weight_product(const WeightProduct& product, Stream stream) {
  LaunchShape shape;
  shape.blocks_x = (product.n_out + kProductWarps - 1) / kProductWarps;
  shape.threads = kProductThreads;
  if (product.n_rows == 0) return;
  for_weight_type(product.type, [&]<WeightType kType>() {
    if (product.n_rows == 1) return launch(multiply_output<kType, 1>, shape, stream, product);
    launch(multiply_output<kType, kMostProductRows>, shape, stream, product);
  });
}

}  // namespace kvasir::cuda
