// How fast the machine multiplies and adds: the bound of work that memory does not bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir {

class ThreadPool;

// f32 multiply-adds/s (each is 2 floating-point operations) of all workers of `pool` together, from
// registers and on the SIMD target in use: the median of `repeats`. Error(kInput) for less than one
// repeat, Error(kInternal) when the machine miscalculates.
double measure_multiply_add_rate(ThreadPool& pool, int repeats = 9);

}  // namespace kvasir
