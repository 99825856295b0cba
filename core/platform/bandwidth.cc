// The machine's read bandwidth: every worker sums its own slice, in one stream and in several.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/error.h"
#include "core/platform/cpu_features.h"
#include "core/platform/memory.h"
#include "core/platform/thread_pool.h"

namespace kvasir {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kLinesPerTurn = 4;  // read from one stream before the next one's turn
constexpr size_t kManyStreams = 8;
constexpr size_t kLineUnit = kLinesPerTurn * kManyStreams;  // slices are multiples of this

// Sum of all 64-bit words of `n_lines` cache lines, a multiple of kLineUnit.
using SumLines = uint64_t (*)(const std::byte* data, size_t n_lines);

template <size_t kStreams>
uint64_t sum_baseline(const std::byte* data, size_t n_lines) {
  const size_t per_stream = n_lines / kStreams;
  uint64_t sums[kLine / 8] = {};
  for (size_t turn = 0; turn < per_stream; turn += kLinesPerTurn) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      for (size_t line = turn; line < turn + kLinesPerTurn; ++line) {
        uint64_t words[kLine / 8];
        std::memcpy(words, data + (stream * per_stream + line) * kLine, kLine);
        for (size_t i = 0; i < kLine / 8; ++i) sums[i] += words[i];
      }
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)
// Half the instructions per line are twice the lines in flight where streams alternate.
template <size_t kStreams>
__attribute__((target("avx2"))) uint64_t sum_avx2(const std::byte* data, size_t n_lines) {
  const size_t per_stream = n_lines / kStreams;
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
  for (size_t turn = 0; turn < per_stream; turn += kLinesPerTurn) {
#pragma GCC unroll 8
    for (size_t stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 4
      for (size_t line = turn; line < turn + kLinesPerTurn; ++line) {
        const auto* p =
            reinterpret_cast<const __m256i*>(data + (stream * per_stream + line) * kLine);
        low = _mm256_add_epi64(low, _mm256_load_si256(p));
        high = _mm256_add_epi64(high, _mm256_load_si256(p + 1));
      }
    }
  }
  uint64_t words[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_add_epi64(low, high));
  return words[0] + words[1] + words[2] + words[3];
}
#endif

// Which way of reading is the fastest depends on the prefetchers: one stream per core on Zen 4
// (34 against 19 GB/s on one core), several on a virtual Sapphire Rapids. Both are tried.
std::vector<SumLines> ways_to_read() {
#if defined(__x86_64__)
  if (cpu_features().avx2) return {sum_avx2<1>, sum_avx2<kManyStreams>};
#endif
  return {sum_baseline<1>, sum_baseline<kManyStreams>};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Bytes/s of each repeat. The sum is checked, so that no compiler may drop the loop.
std::vector<double> time_repeats(ThreadPool& pool, const Region& region, SumLines sum_lines,
                                 int repeats) {
  using Clock = std::chrono::steady_clock;
  const size_t slice_bytes = region.size() / pool.n_workers();
  const uint64_t expected = 0x0101010101010101u * (region.size() / sizeof(uint64_t));
  std::vector<double> bandwidths;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::atomic<uint64_t> total{0};
    const auto start = Clock::now();
    pool.run_on_all([&](uint32_t worker) {
      total += sum_lines(region.data() + worker * slice_bytes, slice_bytes / kLine);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (total != expected) {
      throw Error(ErrorKind::kInternal, "memory did not read back what was written to it");
    }
    bandwidths.push_back(static_cast<double>(region.size()) / seconds);
  }
  return bandwidths;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, size_t bytes, int repeats) {
  if (bytes == 0) bytes = std::min<size_t>(size_t{1} << 30, memory_info().available_bytes / 4);
  const size_t slice_bytes = bytes / pool.n_workers() / (kLineUnit * kLine) * (kLineUnit * kLine);
  if (slice_bytes == 0 || repeats < 1) {
    throw input_error("measuring the read bandwidth needs at least " +
                      std::to_string(kLineUnit * kLine * pool.n_workers()) +
                      " bytes and one repeat");
  }
  const Region region(slice_bytes * pool.n_workers());
  // Each slice is written by the worker that will read it, so that it lies on that worker's node.
  pool.run_on_all(
      [&](uint32_t worker) { std::memset(region.data() + worker * slice_bytes, 1, slice_bytes); });
  double best = 0;
  for (const SumLines sum_lines : ways_to_read()) {
    best = std::max(best, median(time_repeats(pool, region, sum_lines, repeats)));
  }
  return best;
}

}  // namespace kvasir
