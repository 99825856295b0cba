// Elementwise pieces of a transformer layer on single rows: RMSNorm, SwiGLU, addition.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

// y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps). arXiv:1910.07467. y may be x.
void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y);

// gate[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)). arXiv:2002.05202.
void swiglu(float* gate, const float* up, size_t n);

// y[i] += x[i]
void add_to(const float* x, size_t n, float* y);

}  // namespace kvasir::kernels
