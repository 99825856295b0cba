// CUDA devices for `kvasir doctor`, through the runtime library when built with it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::tool {

struct CudaDevice {
  std::string name;
  uint32_t compute_major, compute_minor;
  uint64_t memory_bytes, free_bytes;
};

struct CudaReport {
  bool is_built = false;        // compiled with KVASIR_CUDA=ON
  std::string runtime, driver;  // versions, "12.4"; empty when there is none
  std::string problem;          // why no device can be used; empty when one can
  std::vector<CudaDevice> devices;
};
CudaReport cuda_report();

}  // namespace kvasir::tool
