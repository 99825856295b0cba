// Bulk copies and their barriers on the host; see kernels/cuda/bulk_copy.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

namespace emulation {

void bulk_copy(Pointer<uint8_t> to, Pointer<const uint8_t> from, uint32_t bytes,
               Pointer<Barrier> barrier);
void wait_for_bytes(Pointer<Barrier> barrier, uint32_t parity, Site site);

}  // namespace emulation

void init_barrier(Shared<Barrier> barrier, uint32_t n_threads);
void show_barriers();
void expect_bytes(Shared<Barrier> barrier, uint32_t bytes);
void arrive(Shared<Barrier> barrier);
inline void fence_async() { emulation::Block::running()->fence_async(); }

// Done when it is waited for: until then `to` holds 0xff bytes, which nobody may touch.
template <class T>
void bulk_copy(Shared<T> to, uint64_t from, uint32_t bytes, Shared<Barrier> barrier) {
  emulation::bulk_copy(cast<uint8_t>(to), global<const uint8_t>(from), bytes, barrier);
}
inline void wait_for_bytes(Shared<Barrier> barrier, uint32_t parity,
                           emulation::Site site = emulation::Site::current()) {
  emulation::wait_for_bytes(barrier, parity, site);
}

}  // namespace kvasir::cuda
