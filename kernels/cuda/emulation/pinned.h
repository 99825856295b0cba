// Copies between the emulated device and pinned memory of the host, which are over when the stream
// is waited for, and not before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda::emulation {

void pin(void* data, uint64_t bytes);
// Ends the copies from and to it. Throws Fault for memory that is not pinned.
void unpin(void* data);
bool is_pinned(const void* data, uint64_t bytes);  // all of it
uint64_t n_pinned();                               // arrays

// A copy to the device whose bytes were taken: they must be the same when it ends.
void begin_copy_from(const void* host, uint64_t bytes);
// A copy of these bytes to the host: until it ends there are only 0xff.
void begin_copy_to(void* host, const void* bytes_now, uint64_t bytes);
// Throws Fault where the host wrote what a copy still read.
void end_copies();

}  // namespace kvasir::cuda::emulation
