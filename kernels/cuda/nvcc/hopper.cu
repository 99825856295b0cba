// Whether this build and this device have what Hopper has alone.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {
namespace {

__global__ void kernel_of_this_build() {}

}  // namespace

std::string hopper_problem() {
  const std::string problem = device_problem();
  if (!problem.empty()) return problem;
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) {
    return "the instructions of Hopper need compute capability 9.0, this device has " +
           std::to_string(major) + "." + std::to_string(minor);
  }
  // Code of another architecture that the driver has translated has no such instructions.
  cudaFuncAttributes code{};
  const cudaError_t status = cudaFuncGetAttributes(&code, kernel_of_this_build);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (code.ptxVersion < 90) return "this build has no code for sm_90a (CMAKE_CUDA_ARCHITECTURES)";
  return "";
}

}  // namespace kvasir::cuda
