// The machine's read bandwidth: every worker sums its own slice, several streams at a time.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/platform/memory.h"
#include "core/platform/thread_pool.h"

namespace kvasir {
namespace {

constexpr size_t kStreams = 4;
constexpr size_t kLine = 64;

// Sum of all 64-bit words of `n_lines` cache lines, read as kStreams streams side by side: the
// hardware follows each one on its own, and no addition waits for another stream's.
uint64_t sum_lines(const std::byte* data, size_t n_lines) {
  using Vector = uint64_t __attribute__((vector_size(kLine)));
  static_assert(sizeof(Vector) == kLine);
  const size_t per_stream = n_lines / kStreams;
  Vector sums[kStreams] = {};
  for (size_t line = 0; line < per_stream; ++line) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      Vector v;
      std::memcpy(&v, data + (stream * per_stream + line) * kLine, kLine);
      sums[stream] += v;
    }
  }
  const Vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  uint64_t total = 0;
  for (size_t i = 0; i < kLine / sizeof(uint64_t); ++i) total += sum[i];
  return total;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, size_t bytes, int repeats) {
  using Clock = std::chrono::steady_clock;
  const size_t slice_lines = bytes / kLine / pool.n_workers() / kStreams * kStreams;
  const size_t slice_bytes = slice_lines * kLine;
  if (slice_lines == 0 || repeats < 1) {
    throw input_error("measuring the read bandwidth needs " +
                      std::to_string(kLine * kStreams * pool.n_workers()) +
                      " bytes or more and one repeat or more");
  }
  const Region region(slice_bytes * pool.n_workers());
  // Written by the worker that will read it, so that it lies on that worker's node; not with zeros,
  // of which the kernel keeps one page for all.
  pool.run_on_all(
      [&](uint32_t worker) { std::memset(region.data() + worker * slice_bytes, 1, slice_bytes); });
  std::atomic<uint64_t> total{0};
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    pool.run_on_all([&](uint32_t worker) {
      total += sum_lines(region.data() + worker * slice_bytes, slice_lines);
    });
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  // Checked, so that no compiler may drop the loop.
  const uint64_t n_words = region.size() / sizeof(uint64_t);
  if (total != 0x0101010101010101u * n_words * static_cast<uint64_t>(repeats)) {
    throw Error(ErrorKind::kInternal, "memory did not read back what was written to it");
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return static_cast<double>(region.size()) / seconds[static_cast<size_t>(repeats) / 2];
}

}  // namespace kvasir
