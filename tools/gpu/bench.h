// What the benchmarks of kernels share: memory of the device, and the time of a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
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

// Median seconds of call(i), i from 0 to kChoices - 1 in turns, of as many in a row as take about
// two milliseconds: what the device takes where the host does not wait for each.
inline constexpr uint32_t kChoices = 8;
template <class Call>
double seconds_in_a_row(const Call& call, uint32_t n_runs) {
  if (n_runs == 1) return seconds_of([&] { call(0u); }, 1);
  const double one = seconds_of([&] { call(0u); }, 3);
  const auto n = static_cast<uint32_t>(std::clamp(std::ceil(2e-3 / one), 1.0, 64.0));
  uint32_t i = 0;
  const auto some = [&] {
    for (uint32_t done = 0; done < n; ++done) call(i++ % kChoices);
  };
  return seconds_of(some, n_runs) / n;
}

}  // namespace kvasir::bench
