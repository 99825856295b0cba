// See finite.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/finite.h"

#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kFiniteThreads = 256, kValuesPerThread = 8, kMostBlocks = 1024;

// One addition per block that has any: where all is well, none.
KVASIR_KERNEL void KVASIR_BOUNDS(kFiniteThreads)
    add_not_finite(uint64_t value, uint64_t n, uint64_t n_bad) {
  KVASIR_SHARED(uint32_t, in_block, 1);
  const Global<const uint32_t> bits = global<const uint32_t>(value);
  if (thread_x() == 0) in_block[0] = 0;
  block_sync();
  uint32_t found = 0;
  for (uint64_t i = uint64_t{block_x()} * kFiniteThreads + thread_x(); i < n;
       i += uint64_t{blocks_x()} * kFiniteThreads)
    found += (bits[i] & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  if (found != 0) atomic_add(in_block, found);
  block_sync();
  const uint32_t all = in_block[0];
  if (thread_x() == 0 && all != 0) atomic_add(global<uint32_t>(n_bad), all);
}

}  // namespace

void count_not_finite(uint64_t value, uint64_t n, uint64_t n_bad, Stream stream) {
  constexpr uint64_t kValuesPerBlock = uint64_t{kFiniteThreads} * kValuesPerThread;
  const uint64_t blocks = (n + kValuesPerBlock - 1) / kValuesPerBlock;
  if (blocks == 0) return;
  launch(add_not_finite,
         {.blocks_x = static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks),
          .threads = kFiniteThreads},
         stream, value, n, n_bad);
}

}  // namespace kvasir::cuda
