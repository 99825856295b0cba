// Whether numbers on the device are finite.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Adds to *n_bad how many of the values are NaN or infinite.
//   value  f32 [n]    device memory
//   n_bad  u32        device memory
//
// Launch: blocks of 256 threads, 8 values per thread and at most 1,024 blocks, which then go on;
// reads every value once. Queued in the stream.
void count_not_finite(uint64_t value, uint64_t n, uint64_t n_bad, Stream stream);

}  // namespace kvasir::cuda
