// What launch() leaves to the host's compiler. Throw cuda::Error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

void check_launch(cudaError_t status);
// Lets a kernel have more than 48 KiB of dynamic shared memory.
void allow_shared(const void* kernel, uint32_t bytes);

}  // namespace kvasir::cuda
