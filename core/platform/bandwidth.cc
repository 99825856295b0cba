// The machine's read bandwidth: every worker sums its own slice, in one stream, in several, and
// block by block.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
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

// Sums of all 64-bit words of `n_lines` cache lines, a multiple of kLineUnit.
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

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

size_t slice_of(const ThreadPool& pool, size_t bytes) {
  if (bytes == 0) bytes = std::min<size_t>(size_t{1} << 30, memory_info().available_bytes / 4);
  const size_t slice = bytes / pool.n_workers() / (kLineUnit * kLine) * (kLineUnit * kLine);
  if (slice == 0) {
    throw input_error("measuring the read bandwidth needs at least " +
                      std::to_string(kLineUnit * kLine * pool.n_workers()) + " bytes");
  }
  return slice;
}

// Runs read(worker) -> sum on all workers: bytes/s of `bytes`, all of them ones. The sum is
// checked, so that no compiler may drop the loop.
template <class Read>
double timed(ThreadPool& pool, size_t bytes, const Read& read) {
  using Clock = std::chrono::steady_clock;
  const uint64_t expected = 0x0101010101010101u * (bytes / sizeof(uint64_t));
  std::atomic<uint64_t> total{0};
  const auto start = Clock::now();
  pool.run_on_all([&](uint32_t worker) { total += read(worker); });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (total != expected)
    throw Error(ErrorKind::kInternal, "memory did not read back what was written to it");
  return static_cast<double>(bytes) / seconds;
}

}  // namespace

// Which way of reading is the fastest depends on the prefetchers: one stream per core on Zen 4
// (34 against 19 GB/s on one core), several on a virtual Sapphire Rapids. Both are tried.
std::vector<BandwidthMeter::SumLines> BandwidthMeter::ways_to_read() {
#if defined(__x86_64__)
  if (cpu_features().avx2) return {sum_avx2<1>, sum_avx2<kManyStreams>};
#endif
  return {sum_baseline<1>, sum_baseline<kManyStreams>};
}

BandwidthMeter::BandwidthMeter(ThreadPool& pool, size_t bytes)
    : pool_(pool),
      slice_bytes_(slice_of(pool, bytes)),
      region_(slice_bytes_ * pool.n_workers()),
      fastest_(ways_to_read()[0]) {
  pool.run_on_all([&](uint32_t worker) {
    std::memset(region_.data() + worker * slice_bytes_, 1, slice_bytes_);
  });
  double best = 0;
  for (const SumLines way : ways_to_read()) {
    const double rate = median({pass(way), pass(way), pass(way)});
    if (rate > best) fastest_ = way;
    best = std::max(best, rate);
  }
}

double BandwidthMeter::pass(SumLines sum_lines) {
  return timed(pool_, region_.size(), [&](uint32_t worker) {
    return sum_lines(region_.data() + worker * slice_bytes_, slice_bytes_ / kLine);
  });
}

double BandwidthMeter::read_blocks(size_t block_bytes) {
  const size_t n_blocks = block_bytes ? slice_bytes_ / block_bytes : 0;
  if (n_blocks == 0 || block_bytes % (kLineUnit * kLine) != 0)
    throw input_error("blocks of " + std::to_string(block_bytes) +
                      " bytes cannot be read: a multiple of " + std::to_string(kLineUnit * kLine) +
                      " is needed, up to " + std::to_string(slice_bytes_));
  std::vector<uint32_t> order(n_blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const SumLines sum_lines = ways_to_read()[0];
  return timed(pool_, n_blocks * block_bytes * pool_.n_workers(), [&](uint32_t worker) {
    const std::byte* slice = region_.data() + worker * slice_bytes_;
    uint64_t sum = 0;
    for (const uint32_t block : order)
      sum += sum_lines(slice + block * block_bytes, block_bytes / kLine);
    return sum;
  });
}

double measure_read_bandwidth(ThreadPool& pool, size_t bytes, int repeats) {
  if (repeats < 1) throw input_error("measuring the read bandwidth needs at least one repeat");
  BandwidthMeter meter(pool, bytes);
  double best = 0;
  for (const BandwidthMeter::SumLines way : BandwidthMeter::ways_to_read()) {
    std::vector<double> rates;
    for (int repeat = 0; repeat < repeats; ++repeat) rates.push_back(meter.pass(way));
    best = std::max(best, median(rates));
  }
  return best;
}

}  // namespace kvasir
