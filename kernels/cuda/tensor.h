// Products of small matrices by a warp, and copies into shared memory that go on while threads
// compute. Part of the language of device.h, for kernels that need it.
//
//   device                           here
//   mma.sync.m16n8k16 (f16, bf16)    multiply_f16(), multiply_bf16()
//   mma.sync.m16n8k8 (tf32)          multiply_tf32()
//   ldmatrix.x4, .trans              load_matrices(), load_matrices_transposed()
//   movmatrix.trans                  transpose_matrix()
//   cp.async of 16 bytes             copy_ahead(), commit_copies(), wait_for_copies<n>()
//
// All lanes of a warp come to each product and each load together. With row g = lane / 4 and
// t = lane % 4, a lane holds
//   of A [16, 16] in f16 or bf16, pairs along k:  (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8)
//   of B [16, 8], pairs along k:                  (2t, g) (2t + 8, g)
//   of A [16, 8] in tf32:                         (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4)
//   of B [8, 8] in tf32:                          (t, g) (t + 4, g)
//   of D [16, 8] in f32:                          (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
// and the product is added to D.
//
// load_matrices(out, row): four matrices of 8 rows of 8 16-bit elements; lane l names row l % 8 of
// matrix l / 8, 16 bytes at an address that is a multiple of 16. out[m] gets elements 2t and 2t + 1
// of row g of matrix m; transposed: element g of rows 2t and 2t + 1.
//
// transpose_matrix(pair): of 8 rows of 8 16-bit elements, lane (g, t) has elements 2t and 2t + 1 of
// row g, and gets element g of rows 2t and 2t + 1.
//
// copy_ahead(to, from, is_there): 16 bytes of global memory, both addresses multiples of 16, or
// zeros where nothing is there. What a thread has started since its last commit_copies() is a
// group; wait_for_copies<n>() waits until all but its last n groups are there. A barrier shows
// them to other threads. Until then nobody touches `to`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/device.h"
#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/tensor.h"
#else
#include "kernels/cuda/nvcc/tensor.h"
#endif
