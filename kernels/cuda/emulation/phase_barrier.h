// Barriers of phases on the host; see kernels/cuda/phase_barrier.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

void init_barrier(Shared<Barrier> barrier, uint32_t n_threads);
void arrive(Shared<Barrier> barrier);
void wait_for_phase(Shared<Barrier> barrier, uint32_t parity,
                    emulation::Site site = emulation::Site::current());
inline void fence_async() { emulation::Block::running()->fence_async(); }

}  // namespace kvasir::cuda
