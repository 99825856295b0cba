// The few weights of a softmax that carry most of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

// x[i] = exp(y[i] - max_j y[j]), y = scale * x, or softcap * tanh(scale * x / softcap) where
// softcap > 0. Returns the sum, added up in double. Relative error of x[i] at most about
// 4e-7 + 1.2e-7 * (|y[i]| + |max_j y[j]| + 2 * softcap); below exp(-87) exactly 0. The last bits
// depend on the SIMD target. A y that is not finite makes the sum NaN; n = 0 gives 0.
//   x [n] f32, in place; scale > 0
double softmax_weights(float scale, float softcap, float* x, size_t n);

// Bytes of scratch for mark_top_mass, 8-byte aligned by the caller.
size_t top_mass_scratch_bytes(size_t n);

// marked[i] = 1 for the fewest weights whose sum reaches share * total: larger ones first, of equal
// ones the lower index; others are left as they are. With a share of 1 what no longer changes the
// sum in double may be left out. Some ten passes in SIMD, each over about half of what the one
// before left open, then a sort of the few near the bound.
//   weight [n] f32, from 0 to 1; total their sum, > 0; marked [n]
void mark_top_mass(const float* weight, size_t n, double total, double share, uint8_t* marked,
                   void* scratch);

}  // namespace kvasir::kernels
