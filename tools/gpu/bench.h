// What the benchmarks of kernels share: memory of the device, and the time of a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace kvasir::bench {

struct Memory {
  explicit Memory(uint64_t bytes) : data(cuda::allocate_memory(bytes)) {}
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    cuda::copy_to_device(data, values.data(), values.size() * sizeof(T), {});
  }
  ~Memory() { cuda::free_memory(data); }
  Memory(const Memory&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(data); }
  void* data;
};

// Median seconds of one call, after one that is not counted.
template <class Call>
double seconds_of(const Call& call, uint32_t n_runs) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (uint32_t i = 0; i <= n_runs; ++i) {
    cuda::wait({});
    const auto begin = Clock::now();
    call();
    cuda::wait({});
    if (i > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace kvasir::bench
