// Elementwise pieces of a transformer layer on single rows: RMSNorm, SwiGLU and GEGLU, addition,
// the mean of rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps). arXiv:1910.07467. y may be x.
void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y);

// gate[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)). arXiv:2002.05202.
void swiglu(float* gate, const float* up, size_t n);

// gate[i] = gelu(gate[i]) * up[i], gelu(g) = g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2.
// arXiv:1606.08415, arXiv:2002.05202.
void geglu(float* gate, const float* up, size_t n);

// y[i] += x[i]
void add_to(const float* x, size_t n, float* y);

// y[i] = sum_r x[r][i] / n_rows: the one query that stands for many, for instance. Each element is
// divided before it is added, from 0 in the order of the rows, so that large values do not overflow
// and every SIMD target gives the same bits.
//   x [n_rows, width] f32, contiguous, n_rows >= 1; y [width] f32, written, not within x
void mean_of_rows(const float* x, size_t n_rows, size_t width, float* y);

}  // namespace kvasir::kernels
