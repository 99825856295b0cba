// The types of addresses in kernels and in what is handed to them: plain pointers on the device,
// checked ones in the emulation. Also for code that a host compiler reads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/pointer.h"
#endif

namespace kvasir::cuda {

#ifdef KVASIR_CUDA_EMULATION
template <class T>
using Global = emulation::Pointer<T>;
template <class T>
using Shared = emulation::Pointer<T>;
#else
template <class T>
using Global = T*;
template <class T>
using Shared = T*;
#endif

}  // namespace kvasir::cuda
