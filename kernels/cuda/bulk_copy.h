// Copies of whole rows into shared memory that a copy engine makes, and barriers that count their
// bytes. Part of the language of device.h, for devices of compute capability 9.0.
//
//   device                                       here
//   mbarrier.init, fence.mbarrier_init           init_barrier(), show_barriers()
//   mbarrier.arrive.expect_tx                    expect_bytes()
//   mbarrier.arrive                              arrive()
//   cp.async.bulk, mbarrier::complete_tx::bytes  bulk_copy()
//   mbarrier.try_wait.parity                     wait_for_bytes()
//   fence.proxy.async                            fence_async()
//
// init_barrier(barrier, n): its phases, 0 first, each end when n threads have called expect_bytes()
// and as many bytes have come as they expect together. The thread that initialised calls
// show_barriers(); then a barrier of the block or the warp shows them to other threads.
//
// bulk_copy(to, from, bytes, barrier): global memory to shared memory; both addresses and `bytes`
// are multiples of 16. Until a phase has ended that counts these bytes, nobody touches `to`; the
// threads that have waited for it may then read.
//
// wait_for_bytes(barrier, parity): until the phase of that parity, 0 for phase 0, has ended. A
// thread waits for every phase, in order: two phases later the parity is the same again. Parity 1
// before any phase has ended is over at once. It orders what was copied, and what threads did
// before they came by arrive(), nothing else.
//
// arrive(barrier): expect_bytes() of none, by which the thread also says that what it has done of
// memory so far comes before what threads do that wait for the phase. A warp_sync() before makes
// one lane say it for its warp.
//
// fence_async(): what the thread has read and written of shared memory comes before what the copy
// engine writes there and tensor cores read there (panel_product.h) for threads that a barrier
// orders behind it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/device.h"

namespace kvasir::cuda {

struct alignas(8) Barrier {
  uint64_t state;
};

}  // namespace kvasir::cuda

#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/bulk_copy.h"
#else
#include "kernels/cuda/nvcc/bulk_copy.h"
#endif
