// Rows times a weight matrix stored in panels of 64 outputs: the products of decode, and of prefill
// where the library's would sum in another order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

inline constexpr size_t kPanelWidth = 64;        // outputs per panel
inline constexpr size_t kPanelProductRows = 64;  // largest n_rows

// How the weights of a panel lie, and with it how they are summed.
enum class PanelType : uint32_t {
  kF32,        // f32 [n_in, 64]
  kF16,        // f16 [n_in, 64], multiplied as the f32 that they are
  kBF16,       // bf16 [n_in, 64], likewise
  kBF16Pairs,  // bf16 [n_in / 2, 64, 2]: inputs 2i and 2i + 1 side by side, an odd n_in padded by
               // one
};
constexpr size_t panel_element_bytes(PanelType type) { return type == PanelType::kF32 ? 4 : 2; }

// y[r, j] = sum_k x[r, k] * w[k, j], plus what y held when `accumulate`.
//
// The order of the sum is part of the contract, so that a row's result depends neither on the other
// rows nor on their number, and may equal a library's bit for bit: each block of `block` inputs
// (even) is a chain of fused multiply-adds from zero, in the order of the inputs (of pairs the odd
// one, then the even one, as VDPBF16PS does, subnormals taken as zero as there); the blocks are
// added up in order, and what y held comes last.
//
//   x  [n_rows, n_in]  f32, rows x_stride apart
//   w  one panel; columns from n_cols on are ignored
//   y  [n_rows, n_cols] f32, rows y_stride apart; must not overlap the inputs
//
// Sums in f32. Reads the panel once, in order: bound by memory for n_rows up to about 4 (f32).
void panel_product(PanelType type, const float* x, size_t x_stride, size_t n_rows, const void* w,
                   size_t n_in, size_t block, size_t n_cols, bool accumulate, float* y,
                   size_t y_stride);

}  // namespace kvasir::kernels
