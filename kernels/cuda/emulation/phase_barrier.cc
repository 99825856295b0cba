// See phase_barrier.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/phase_barrier.h"

#include "kernels/cuda/emulation/hopper.h"

namespace kvasir::cuda {
namespace {

// Barriers are used where their initialisation is ordered before.
const void* use(Shared<Barrier> barrier) {
  barrier.check(sizeof(Barrier), alignof(Barrier), emulation::Touch::kRead);
  return barrier.raw();
}

}  // namespace

void init_barrier(Shared<Barrier> barrier, uint32_t n_threads) {
  emulation::need_hopper();
  barrier.write(Barrier{});
  emulation::Block::running()->phases().init(barrier.raw(), n_threads);
}
void arrive(Shared<Barrier> barrier) { emulation::Block::running()->arrive(use(barrier)); }
void wait_for_phase(Shared<Barrier> barrier, uint32_t parity, emulation::Site site) {
  emulation::Block::running()->wait_for_phase(use(barrier), parity, site);
}

}  // namespace kvasir::cuda
