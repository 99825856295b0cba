// Rows times a panel of quantised weights by integer dot products: the rows are rounded to 8 bits
// per 32 inputs, the weights are read as they lie.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/quantized_panel.h"
#include "kernels/quantized_rows.h"

namespace kvasir::kernels {

// Fewer rows are faster without unpacking.
inline constexpr size_t kRowsToUnpack = 96;
static_assert(kRowsToUnpack >= kQuantizedGroup);

// Inputs that are unpacked at a time: a slice of them, with scales of so many levels, has to stay
// in the first cache. A multiple of every layout's inputs_per_head().
constexpr size_t unpacked_inputs(size_t levels) { return levels > 1 ? 256 : 2048; }

// Bytes of the unpacked inputs of a panel, on any CPU, and of the sums of n_rows rows.
constexpr size_t quantized_scratch_bytes(QuantizedType type, size_t n_in, size_t n_rows) {
  size_t most = 0;
  for (const size_t levels : {size_t{1}, kScaleLevels}) {
    const UnpackedLayout panel = unpacked(quantized_layout(type), levels, kPanelOutputs);
    const size_t n_blocks = std::min(n_in, unpacked_inputs(levels)) / kQuantizedInputs;
    most = std::max(most, n_blocks * panel.block_bytes());
  }
  return most + n_rows * kPanelOutputs * sizeof(float);
}

// y[r, j] = sum_k x[r, k] w[k, j], plus what y held when `accumulate`, for rows [begin, end) of x.
//
//   panel  as quantized_panel.h says; columns from n_cols on are ignored
//   y      [end - begin, n_cols] f32, rows y_stride apart; must not overlap the inputs
//
// Sums of a block (or of 16 inputs where a scale has 16) are exact integers. They are added up in
// f32, from zero, in the order of the blocks: sum = fma(integer, scale of w * scale of x, sum),
// where the product of the scales is exact (it has to be below 2^128), then
// sum = fma(min, -scaled_sum of x, sum). So a row's result depends neither on the other rows nor on
// their number. Reads the panel once per 6 rows of a group.
//
// scratch: quantized_scratch_bytes() bytes, aligned to 64, or null; the results are the same. With
// it, kRowsToUnpack rows or more take the panel unpacked, which each input is once.
void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch);

}  // namespace kvasir::kernels
