// See cuda_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/system/cuda_report.h"

#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kvasir::tool {

#ifdef KVASIR_HAVE_CUDA
namespace {

std::string version_text(int version) {  // 12040 is 12.4
  if (version == 0) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaDevice device_of(int index) {
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, index);
  size_t free_bytes = 0, total_bytes = properties.totalGlobalMem;
  if (cudaSetDevice(index) == cudaSuccess) cudaMemGetInfo(&free_bytes, &total_bytes);
  return {properties.name, static_cast<uint32_t>(properties.major),
          static_cast<uint32_t>(properties.minor), total_bytes, free_bytes};
}

}  // namespace

CudaReport cuda_report() {
  CudaReport report;
  report.is_built = true;
  int runtime = 0, driver = 0, n_devices = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  report.runtime = version_text(runtime);
  report.driver = version_text(driver);
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status != cudaSuccess) {
    report.problem = cudaGetErrorString(status);
    return report;
  }
  if (n_devices == 0) report.problem = "no device";
  for (int i = 0; i < n_devices; ++i) report.devices.push_back(device_of(i));
  return report;
}
#else
CudaReport cuda_report() {
  CudaReport report;
  report.problem = "built without CUDA (KVASIR_CUDA=OFF)";
  return report;
}
#endif

}  // namespace kvasir::tool
