// What is given to a stream, as a graph.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Of what fn() gives to the stream, which does not run. Throws what fn() does, and Error; nothing
// is captured then.
template <class Fn>
Graph captured(Stream stream, const Fn& fn) {
  begin_capture(stream);
  try {
    fn();
    return end_capture(stream);
  } catch (...) {
    abandon_capture(stream);
    throw;
  }
}

}  // namespace kvasir::cuda
