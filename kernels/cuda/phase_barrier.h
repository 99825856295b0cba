// Barriers that threads come to and go on, and others wait for: of shared memory that some warps
// fill and others empty in turns. Part of the language of device.h, for devices of compute
// capability 9.0.
//
//   device                          here
//   mbarrier.init                   init_barrier()
//   mbarrier.arrive                 arrive()
//   mbarrier.try_wait.parity        wait_for_phase()
//   fence.proxy.async               fence_async()
//
// init_barrier(barrier, n): its phases, 0 first, each end when n threads have come by arrive(). A
// barrier of the block or the warp shows it to other threads.
//
// arrive(barrier): what the thread has done of memory so far comes before what threads do that wait
// for the phase. A warp_sync() before makes one lane say it for its warp.
//
// wait_for_phase(barrier, parity): until the phase of that parity, 0 for phase 0, has ended. A
// thread waits for every phase, in order: two phases later the parity is the same again. Parity 1
// before any phase has ended is over at once.
//
// fence_async(): what the thread has read and written of shared memory comes before what tensor
// cores read there (panel_product.h) for threads that a barrier orders behind it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/device.h"

namespace kvasir::cuda {

struct alignas(8) Barrier {
  uint64_t state;
};

}  // namespace kvasir::cuda

#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/phase_barrier.h"
#else
#include "kernels/cuda/nvcc/phase_barrier.h"
#endif
