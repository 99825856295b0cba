// Rows times a panel of quantised weights by integer dot products: the rows are rounded to 8 bits
// per 32 inputs, the weights are read as they lie.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/quantized_panel.h"

namespace kvasir::kernels {

// The least offset of the types whose scales have 32 inputs, and of those whose scales have 16.
inline constexpr int32_t kSumFactor = 8, kHalfSumFactor = 32;

// Most rows whose blocks lie side by side: all tiles of rows divide it, of every target.
inline constexpr size_t kQuantizedGroup = 12;

// Rows of a group of n_rows rows in all.
constexpr size_t quantized_group(size_t n_rows) {
  return std::clamp<size_t>(n_rows, 1, kQuantizedGroup);
}

// Rows of activations: x[r, k] is about scale[b] * q[b, k % 32], with q in [-127, 127] and
// b = block(r, k / 32, n_in). Rows lie in groups, so that a tile of rows reads memory in order: in
// a group block by block, in a block row by row. A row's next block is `group` further on.
struct QuantizedRows {
  int8_t* q;          // [n_blocks, 32]
  float* scale;       // [n_blocks]
  float* scaled_sum;  // [n_blocks]  scale times the sum of the q of the block
  // Where sums of products with unsigned weights begin, or a fraction of that: minus the sum of
  // the q of a block times kSumFactor, of half a block times kHalfSumFactor.
  int32_t* minus_sum;       // [n_blocks]
  int32_t* minus_half_sum;  // [n_blocks, 2]
  size_t group;             // rows of a group

  constexpr size_t block(size_t row, size_t block_of_row, size_t n_in) const {
    return (row / group * (n_in / kQuantizedInputs) + block_of_row) * group + row % group;
  }
};

// Blocks of n_rows rows: whole groups. n_in % 32 == 0.
constexpr size_t quantized_blocks(size_t n_rows, size_t n_in) {
  const size_t group = quantized_group(n_rows);
  return (n_rows + group - 1) / group * group * (n_in / kQuantizedInputs);
}

// Bytes that the five arrays take together, and the arrays inside `memory`, which is aligned to 64
// bytes.
constexpr size_t quantized_rows_bytes(size_t n_rows, size_t n_in) {
  return quantized_blocks(n_rows, n_in) * (kQuantizedInputs + 4 + 4 + 4 + 8);
}
QuantizedRows quantized_rows_at(void* memory, size_t n_rows, size_t n_in);

// Rounds rows [begin, end) of x [n_rows, n_in] f32, contiguous, to rows of `out`: scale =
// max |x| / 127 of each block, q = x / scale to nearest, ties to even; a block whose max |x| is
// below 2^-100 is zero. A block that holds what is not finite has a scale of NaN, so that products
// of it are NaN.
void quantize_rows(const float* x, size_t begin, size_t end, size_t n_in, const QuantizedRows& out);

// Fewer rows are faster without unpacking.
inline constexpr size_t kRowsToUnpack = 96;

// Bytes of an unpacked panel; 0 where a tile reads the type as fast as it is.
constexpr size_t quantized_scratch_bytes(QuantizedType type, size_t n_in) {
  const QuantizedLayout layout = quantized_layout(type);
  if (layout.bits == 4 || layout.bits == 8) return 0;
  return quantized_panel_bytes(unpacked(layout), n_in);
}

// y[r, j] = sum_k x[r, k] w[k, j], plus what y held when `accumulate`, for rows [begin, end) of x.
//
//   panel  as quantized_panel.h says; columns from n_cols on are ignored
//   y      [end - begin, n_cols] f32, rows y_stride apart; must not overlap the inputs
//
// Sums of a block (or of 16 inputs where a scale has 16) are exact integers. They are added up in
// f32, from zero, in the order of the blocks: t = integer * scale of w, rounded; sum = fma(t, scale
// of x, sum), then sum = fma(min, -scaled_sum of x, sum). So a row's result depends neither on the
// other rows nor on their number. Reads the panel once per 6 rows of a group (4 or 1 without
// AVX-512).
//
// scratch: quantized_scratch_bytes() bytes, aligned to 64, or null; the results are the same. With
// it, kRowsToUnpack rows or more take the panel unpacked, which is once.
void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch);

}  // namespace kvasir::kernels
