// Streams of the emulated device, as far as they differ: what one records runs later, and what one
// is given may, until it is waited for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda::emulation {

// From now on work stays in its stream until that is waited for, or all are:
// who reads too early what another stream writes reads what was there before.
// Without it work is done when it is given. For tests; no stream may have work.
void put_off(bool are);
bool puts_off(Stream stream);  // and it is not captured
// Calls of wait() so far, and one more.
uint64_t n_waits();
void count_wait();

// Runs the work, puts it off, or records it where the stream is captured.
void give(Stream stream, std::function<void()> work);
void give_kernel(Stream stream,
                 std::function<void()> work);  // counts it as a launch, if it is one
// Where the stream is captured: throws Fault(kCapture), and the capture can only be abandoned.
void refuse_capture(Stream stream, const char* what);
// Runs what the stream was given and put off; that of all of them where it is the default one.
// Throws what the work does; what comes behind that is lost.
void finish(Stream stream);
void finish_all() noexcept;
// The same as refuse_capture() where this thread captures any stream.
void refuse_in_capture(const char* what);

}  // namespace kvasir::cuda::emulation
