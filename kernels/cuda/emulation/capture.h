// Streams of the emulated device, as far as they differ: what one records runs later.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda::emulation {

// Runs the work, or records it where the stream is captured.
void give(Stream stream, std::function<void()> work);
void give_kernel(Stream stream, std::function<void()> work);  // counts it as a launch, if it is one
// Where the stream is captured: throws Fault(kCapture), and the capture can only be abandoned.
void refuse_capture(Stream stream, const char* what);
// The same where this thread captures any stream.
void refuse_in_capture(const char* what);

}  // namespace kvasir::cuda::emulation
