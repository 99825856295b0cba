// Products of matrices in shared memory, made by 128 threads together. Part of the language of
// device.h, for devices of compute capability 9.0.
//
//   device                                      here
//   wgmma.fence                                 begin_products()
//   wgmma.mma_async.m64n64k16 (f16, bf16)       multiply_rows_…(), multiply_columns_…()
//   wgmma.commit_group, wgmma.wait_group 0      finish_products()
//   extern __shared__ at a multiple of 1024     take_panels()
//
// A panel has 64 rows of 64 elements of 16 bits, 128 bytes each, at a multiple of 1024 bytes. The
// eight 16-byte pieces of row r lie in the order of piece ^ (r % 8), which the instructions call a
// swizzle of 128 bytes: see panel_place().
//
// Threads [128 n, 128 (n + 1)) come to each product together, with the same panels. Warp w of them
// has rows [16 w, 16 (w + 1)) of A and D, and its lanes hold them as those of a product of tensor.h
// do: D [64, 64] is d[n] of columns 8 n to 8 n + 7, from d[kFirst] on.
//   multiply_rows_…<kFirst>(d, a, b):    D += A B^T, with A and B [64, 16] the columns [16 i, 16 (i
//   +
//     1)) of two panels: `a` and `b` lie 16 i elements behind the panels' begin
//   multiply_columns_…<kFirst>(d, a, b): D += A B, with A [64, 16] in registers and B [16, 64] the
//   rows
//     [16 i, 16 (i + 1)) of a panel, which begin at `b`
//
// Between begin_products(d, a...) and finish_products(d, a...), which name all registers of the
// products between, nobody touches them or the panels. What threads
// have written of a panel is behind fence_async() of bulk_copy.h and a barrier.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/tensor.h"

namespace kvasir::cuda {

inline constexpr uint32_t kPanelWidth = 64;  // rows, and columns
inline constexpr uint32_t kPanelElements = kPanelWidth * kPanelWidth;

// Where an element of a panel lies, in elements from its begin.
KVASIR_DEVICE uint32_t panel_place(uint32_t row, uint32_t column) {
  return row * kPanelWidth + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

}  // namespace kvasir::cuda

#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/panel_product.h"
#else
#include "kernels/cuda/nvcc/panel_product.h"
#endif
