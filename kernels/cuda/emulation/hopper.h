// Whether the emulated device has the instructions of Hopper: it has, until a test says otherwise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace kvasir::cuda::emulation {

std::atomic<bool>& has_hopper();
// Throws Fault where it has not.
void need_hopper();

}  // namespace kvasir::cuda::emulation
