// Starts kernels. For the files that hold them; callers of kernels include their headers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime.h"
#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/capture.h"
#else
#include "kernels/cuda/nvcc/launch_checks.h"
#endif

namespace kvasir::cuda {

struct LaunchShape {
  uint32_t blocks_x = 1, blocks_y = 1;  // none: nothing runs
  uint32_t threads = 128;
  uint32_t shared_bytes = 0;
};

#ifdef KVASIR_CUDA_EMULATION

// Block after block; the first fault ends the launch and is thrown.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
            const std::type_identity_t<Parameters>&... arguments) {
  using emulation::Block;
  if (shape.threads == 0 || shape.threads > emulation::kMostThreads ||
      shape.shared_bytes > emulation::kMostSharedBytes || shape.blocks_y > 65535) {
    throw emulation::Fault(emulation::FaultKind::kLaunch,
                           "more threads, blocks or shared memory than a launch may have");
  }
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  emulation::give_kernel(stream, [=] {
    const auto held = emulation::hold_device();
    const uint64_t run = emulation::next_run();
    for (uint32_t y = 0; y < shape.blocks_y; ++y) {
      for (uint32_t x = 0; x < shape.blocks_x; ++x) {
        Block block({shape.blocks_x, shape.blocks_y}, {x, y}, shape.threads, shape.shared_bytes,
                    run);
        block.run([&] { kernel(arguments...); });
      }
    }
  });
}

#else

template <class... Parameters>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
            const std::type_identity_t<Parameters>&... arguments) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  if (shape.shared_bytes > 48u << 10)
    allow_shared(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks_x, shape.blocks_y);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  check_launch(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

#endif

}  // namespace kvasir::cuda
