// How fast the machine multiplies and adds; see arithmetic_rate.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/arithmetic_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/error.h"
#include "core/platform/thread_pool.h"
#include "kernels/multiply_add.h"

namespace kvasir {
namespace {

constexpr size_t kRounds = size_t{1}
                           << 20;  // two milliseconds or so: waking the workers is nothing

// x / 2 + 1 again and again: from anywhere near it comes to 2 exactly, without growing or fading
// into values that some CPUs are slow with.
constexpr float kFactor = 0.5f, kSummand = 1.0f, kLimit = 2.0f;

double repeat_once(ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> is_right{true};
  const auto start = Clock::now();
  pool.run_on_all([&](uint32_t) {
    float x[kernels::kMultiplyAddChains] = {};
    kernels::multiply_add(kFactor, kSummand, kRounds, x);
    for (const float value : x)
      if (value != kLimit) is_right = false;
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!is_right) throw Error(ErrorKind::kInternal, "multiply-adds did not come to what they must");
  return static_cast<double>(pool.n_workers() * kRounds * kernels::kMultiplyAddChains) / seconds;
}

}  // namespace

double measure_multiply_add_rate(ThreadPool& pool, int repeats) {
  if (repeats < 1) throw input_error("measuring the arithmetic needs at least one repeat");
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) rates.push_back(repeat_once(pool));
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace kvasir
