// See bulk_copy.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bulk_copy.h"

#include <string>

#include "kernels/cuda/emulation/hopper.h"

namespace kvasir::cuda {
namespace emulation {
namespace {

// Barriers are used where their initialisation is ordered before.
const void* use(Pointer<Barrier> barrier) {
  barrier.check(sizeof(Barrier), alignof(Barrier), Touch::kRead);
  return barrier.raw();
}

}  // namespace

void bulk_copy(Pointer<uint8_t> to, Pointer<const uint8_t> from, uint32_t bytes,
               Pointer<Barrier> barrier) {
  if (bytes == 0 || bytes % sizeof(Bytes16) != 0) {
    throw Fault(FaultKind::kBounds, "a bulk copy takes a multiple of 16 bytes, and is asked for " +
                                        std::to_string(bytes));
  }
  from.check(bytes, alignof(Bytes16), Touch::kRead);
  if (to.region()) to.region()->check_fenced(to.raw(), bytes);
  to.check(bytes, alignof(Bytes16), Touch::kWrite);
  std::memset(to.raw(), 0xff, bytes);
  const Moment copied = Block::running()->bulk_copies().add(
      use(barrier), bytes,
      [to = to.raw(), from = from.raw(), bytes] { std::memcpy(to, from, bytes); });
  to.region()->mark_copied(to.raw(), bytes, copied);
}

void wait_for_bytes(Pointer<Barrier> barrier, uint32_t parity, Site site) {
  Block::running()->wait_for_bytes(use(barrier), parity, site);
}

}  // namespace emulation

void init_barrier(Shared<Barrier> barrier, uint32_t n_threads) {
  emulation::need_hopper();
  barrier.write(Barrier{});
  emulation::Block& block = *emulation::Block::running();
  block.bulk_copies().init(barrier.raw(), n_threads, block.moment());
}
void show_barriers() {
  emulation::Block& block = *emulation::Block::running();
  block.bulk_copies().show(block.moment());
  block.fence_async();
}
void expect_bytes(Shared<Barrier> barrier, uint32_t bytes) {
  emulation::Block::running()->bulk_copies().expect(emulation::use(barrier), bytes);
}
void arrive(Shared<Barrier> barrier) {
  emulation::Block::running()->arrive(emulation::use(barrier));
}

}  // namespace kvasir::cuda
