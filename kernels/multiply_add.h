// Multiply-adds and nothing else: what a machine's arithmetic is measured with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvasir::kernels {

inline constexpr size_t kMultiplyAddChains = 192;  // 12 vectors of 512 bits

// x[i] = x[i] * a + b, n_rounds times, fused: one chain for each of the kMultiplyAddChains
// elements.
//
//   x  [kMultiplyAddChains] f32, read and written
//
// Twelve chains of vectors go side by side in registers, more than a core has multiply-adds under
// way (two units of a latency of four or five cycles): bound by arithmetic, memory is not touched
// between the first round and the last.
void multiply_add(float a, float b, size_t n_rounds, float* x);

}  // namespace kvasir::kernels
