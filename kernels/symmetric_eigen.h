// Eigenvalues and eigenvectors of a small symmetric matrix, in double precision.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// a = sum_i value[i] * vector_i * vector_i^T, largest value first; the vectors are orthonormal.
// Cyclic Jacobi rotations until what is left beside the diagonal is rounding. About 8 sweeps of
// 6 n^3 operations: for n up to a few hundred.
//
//   a       [n, n]  symmetric; overwritten
//   value   [n]     written
//   vector  [n, n]  written, one vector per row
void symmetric_eigen(double* a, size_t n, double* value, double* vector);

}  // namespace kvasir::kernels
