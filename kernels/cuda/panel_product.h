// Products of matrices in shared memory, made by 128 threads together. Part of the language of
// device.h, for devices of compute capability 9.0.
//
//   device                                      here
//   wgmma.fence                                 begin_products()
//   wgmma.mma_async.m64n128k16 (f16, bf16)      multiply_rows_…()
//   wgmma.mma_async.m64n64k16                   multiply_columns_…()
//   wgmma.commit_group                          commit_products()
//   wgmma.wait_group                            wait_for_products<n>()
//   setmaxnreg.inc, setmaxnreg.dec              take_registers<n>(), leave_registers<n>()
//   extern __shared__ at a multiple of 1024     take_panels()
//
// A panel has 64 rows of 64 elements of 16 bits, 128 bytes each, at a multiple of 1024 bytes. The
// eight 16-byte pieces of row r lie in the order of piece ^ (r % 8), which the instructions call a
// swizzle of 128 bytes: see panel_place().
//
// Threads [128 n, 128 (n + 1)) come to each product together, with the same panels. Warp w of them
// has rows [16 w, 16 (w + 1)) of A and D, and its lanes hold them as those of a product of tensor.h
// do: d[n] is of columns 8 n to 8 n + 7.
//   multiply_rows_…<kAdds>(d, a, b): D += A B^T, or = where it does not add. A [64, 16] and B
//     [128, 16] are the columns [16 i, 16 (i + 1)) of panels, of B of two, one behind the other:
//     `a` and `b` lie 16 i elements behind the panels' begin. D is [64, 128]
//   multiply_columns_…<kFirst>(d, a, b): D += A B, with A [64, 16] in registers and B [16, 64] the
//     rows [16 i, 16 (i + 1)) of a panel, which begin at `b`. D is [64, 64], from d[kFirst] on
//
// Products between begin_products(d, a...) and commit_products() are a group, of which the former
// names all registers. wait_for_products<n>(d, a...) waits until all groups but the last n are
// done, and names the registers of those it waits for; until then nobody touches them or the
// panels. What threads have written of a panel
// is behind fence_async() of phase_barrier.h and a barrier.
//
// A kernel begins with as many registers per thread for all as its launch bounds give. 128 threads
// together leave all but n of theirs, and others take them, up to n: multiples of 8 from 24 to 240.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/phase_barrier.h"
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
