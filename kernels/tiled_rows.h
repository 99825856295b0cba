// Products of many rows in the tiles of AMX, and the order in which they lie for them.
//
// A core multiplies in tiles faster than its second cache feeds it. So weights of 32 outputs and
// 256 inputs lie in one piece of 16 KiB, which stays in the first cache while rows go by, and rows
// lie tile by tile: lines with gaps between them would share a part of that cache's sets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/quantized_panel.h"

namespace kvasir::kernels {

// Inputs of a chunk of rows: whole blocks of every quantised type. Rows and inputs are counted up
// to multiples of the others.
inline constexpr size_t kTiledInputs = 256, kTiledRows = 32, kTileInputs = 32;

// Rows x [n, n_in] as bf16: chunk by chunk of kTiledInputs inputs (the last may have fewer), each
// [n / 16, inputs / 32] tiles of [16, 32].
struct TiledRows {
  size_t n, n_in;  // counted up

  constexpr size_t elements() const { return n * n_in; }
  constexpr size_t inputs_of(size_t chunk) const {
    const size_t left = n_in - chunk * kTiledInputs;
    return left < kTiledInputs ? left : kTiledInputs;
  }
  // Where row `row`, a multiple of 16, begins in a chunk.
  constexpr size_t offset(size_t chunk, size_t row) const {
    return chunk * kTiledInputs * n + row * inputs_of(chunk);
  }
};
constexpr TiledRows tiled_rows(size_t n, size_t n_in) {
  return {(n + kTiledRows - 1) / kTiledRows * kTiledRows,
          (n_in + kTileInputs - 1) / kTileInputs * kTileInputs};
}

// The functions below need a CPU with AVX512-BF16 and a SIMD target of AVX-512 (has_tiled_rows());
// multiply_tiled_rows() needs uses_bf16_tiles() of simd_target.h.
bool has_tiled_rows();

// Inputs [first, first + count) of rows [begin, end) into `out`, rounded to bf16 to nearest, ties
// to even (below 2^-126: to 0). `first` is a multiple of 32; where count is not, zeros follow.
//   x  x[0] is input `first` of row `begin`; rows x_stride apart
void tile_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t first,
               size_t count, const TiledRows& layout, uint16_t* out);

// A piece of a panel for multiply_tiled_rows(): pairs of inputs as bf16 [2, inputs / 2, 32, 2], the
// first 32 outputs, then the others.
//   of a panel of PanelType::kBF16Pairs: [inputs / 2, 64, 2]
void tile_panel(const void* panel, size_t inputs, uint16_t* out);
//   of quantised weights, inputs a multiple of inputs_per_head(): each weight rounded to bf16 as
//   rows are, from its value in f32
void tile_quantized_panel(QuantizedType type, const void* panel, size_t inputs, uint16_t* out);

// y = x w, or y += x w: where the sums of the last chunk of inputs go.
struct TiledOutput {
  float* y;  // [n, cols], rows `stride` apart
  size_t stride, cols;
  bool accumulate;
};

// What will be read soon.
struct ReadSoon {
  const void* data;
  size_t bytes;
};

// Adds one chunk of inputs: sums = x w, plus what they held when `add`.
//   x       of the chunk, from the first of the n rows on
//   w       as tile_panel() leaves it
//   sums    f32 [2, n counted up to 32, 32], 64-byte aligned
//   out     null before the last chunk
//   ahead   asked for into the second cache meanwhile, evenly
void multiply_tiled_rows(const uint16_t* x, size_t n, size_t inputs, const uint16_t* w, bool add,
                         float* sums, const TiledOutput* out, std::span<const ReadSoon> ahead);

}  // namespace kvasir::kernels
