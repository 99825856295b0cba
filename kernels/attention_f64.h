// Attention in double precision: what faster ways, and choices of tokens, are measured by.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// dots[j * dot_stride + i] = sum_d q[j][d] * row[i][d]. Products are exact, their sum is rounded in
// double, in an order that depends on the SIMD target.
//   q [n_q, dim] f32; rows [n_rows] at distances of row_stride floats, dim each
void dots_f64(const float* q, size_t n_q, const float* rows, size_t n_rows, size_t row_stride,
              size_t dim, double* dots, size_t dot_stride);

// x[i] = exp(x[i] - max_j x[j]) within 1e-14 of it, relatively, and where that is above 1e-300.
// Equal x get equal weights. Returns the sum. -inf gives 0; where nothing is larger than it, all
// are 0. NaN and +inf make the sum NaN.
double softmax_weights_f64(double* x, size_t n);

// sum[d] += sum_i weight[i] * row[i][d], in the order of the rows.
//   rows [n_rows] at distances of row_stride floats, dim each; sum [dim]
void add_weighted_rows_f64(const double* weight, const float* rows, size_t n_rows,
                           size_t row_stride, size_t dim, double* sum);

}  // namespace kvasir::kernels
