// Rows of activations rounded to 8 bits per 32 inputs, for products with quantised weights.
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

// 32 inputs of a row: x[k] is about scale * q[k], with q in [-127, 127]. The rows of a group that
// follow it come next in each array.
struct QuantizedBlock {
  int8_t* q;          // [32]
  float* scale;       // 2^e (1 + level / kScaleLevels)
  float* scaled_sum;  // scale times the sum of q
  // Where sums of products with unsigned weights begin, or a fraction of that: minus the sum of q
  // times kSumFactor, minus the sum of each half of q times kHalfSumFactor.
  int32_t* minus_sum;
  int32_t* minus_half_sum;  // [2]
  // For unpacked panels (UnpackedLayout); set in groups of kQuantizedGroup rows. The bits of
  // `origin` plus an integer n of magnitude below 2^22 are those of
  // origin + n 2^(e - kOriginShift), so that sums which begin there need no conversion.
  float* origin;        // 1.5 * 2^(23 + e - kOriginShift)
  int32_t* level;       // below kScaleLevels
  int32_t* begin;       // the bits of origin minus kUnpackedOffset times the sum of q
  int32_t* half_begin;  // [2]  the same of each half of q

  // Of a block and its ten numbers.
  static constexpr size_t kBytes = kQuantizedInputs + 10 * sizeof(float);

  // The block of the r-th row behind.
  QuantizedBlock row(size_t r) const {
    return {.q = q + r * kQuantizedInputs,
            .scale = scale + r,
            .scaled_sum = scaled_sum + r,
            .minus_sum = minus_sum + r,
            .minus_half_sum = minus_half_sum + 2 * r,
            .origin = origin + r,
            .level = level + r,
            .begin = begin + r,
            .half_begin = half_begin + 2 * r};
  }

  // The same rows' next inputs, in a group of that many rows.
  void advance(size_t group) {
    const size_t numbers = group * kBytes / sizeof(float);
    q += group * kBytes;
    scale += numbers;
    scaled_sum += numbers;
    minus_sum += numbers;
    minus_half_sum += numbers;
    origin += numbers;
    level += numbers;
    begin += numbers;
    half_begin += numbers;
  }
};

// Rows of activations. Rows lie in groups, so that a tile of rows reads memory in order: in a group
// block by block, in a block q of all rows, then each number of all rows.
struct QuantizedRows {
  std::byte* data;
  size_t group;  // rows of a group

  QuantizedBlock block(size_t row, size_t block_of_row, size_t n_in) const {
    std::byte* at = data + (row / group * (n_in / kQuantizedInputs) + block_of_row) * group *
                               QuantizedBlock::kBytes;
    auto* f32 = reinterpret_cast<float*>(at + group * kQuantizedInputs);
    auto* i32 = reinterpret_cast<int32_t*>(at + group * kQuantizedInputs);
    // Those that products of unpacked panels read come first.
    const QuantizedBlock first{.q = reinterpret_cast<int8_t*>(at),
                               .scale = f32 + 6 * group,
                               .scaled_sum = f32 + 3 * group,
                               .minus_sum = i32 + 7 * group,
                               .minus_half_sum = i32 + 8 * group,
                               .origin = f32 + group,
                               .level = i32 + 2 * group,
                               .begin = i32,
                               .half_begin = i32 + 4 * group};
    return first.row(row % group);
  }
};

// Bytes of n_rows rows, of whole groups, which are to be aligned to 64 bytes. n_in % 32 == 0.
constexpr size_t quantized_rows_bytes(size_t n_rows, size_t n_in) {
  const size_t group = quantized_group(n_rows);
  return (n_rows + group - 1) / group * group * (n_in / kQuantizedInputs) * QuantizedBlock::kBytes;
}

// Rounds inputs [from, from + n) of rows [begin, end) to those of `out`, whose rows have n_in:
// scale is max |x| / 127 of each block, rounded up to the next of kScaleLevels values per octave,
// q = x / scale to nearest, ties to even; a block whose max |x| is below 2^-80 is zero. A block
// that holds what is not finite has a scale of NaN, so that products of it are NaN.
//
//   x  [end - begin, n] f32, rows x_stride apart; from and n are multiples of 32
void quantize_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t from, size_t n,
                   size_t n_in, const QuantizedRows& out);

// The same of what that has left, x - scale * q, of rows [begin, end) whole: the rest of row r
// becomes row rest + r of `rows`. Both together have 16 bits.
void quantize_rest(const float* x, size_t x_stride, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& rows, size_t rest);

}  // namespace kvasir::kernels
