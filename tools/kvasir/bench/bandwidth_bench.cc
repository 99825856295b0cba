// See bandwidth_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/bandwidth_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "core/platform/arithmetic_rate.h"
#include "core/platform/bandwidth.h"
#include "core/platform/thread_pool.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {
namespace {

constexpr size_t kLargeBlock = 32 * 1024;  // 128 tokens x 128 x f16: a block of K of one kv head
constexpr size_t kSmallBlock = 4 * 1024;   // 16 tokens of it
constexpr int kRegions = 1000;             // empty ones, per repetition
constexpr int kRegionsAsleep = 20;

double quantile(std::vector<double> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

// The samples of one thread count.
class Meter {
 public:
  Meter(const Topology& topology, uint32_t n_threads, uint64_t bytes)
      : pool_(topology, n_threads), memory_(pool_, bytes) {}

  void sample() {
    streams_.push_back(memory_.read_streams());
    blocks_32k_.push_back(memory_.read_blocks(kLargeBlock));
    blocks_4k_.push_back(memory_.read_blocks(kSmallBlock));
    rates_.push_back(measure_multiply_add_rate(pool_, 1));
    empty_region();  // wakes the workers
    for (int i = 0; i < kRegions; ++i) forks_.push_back(empty_region());
    for (int i = 0; i < kRegionsAsleep; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      forks_asleep_.push_back(empty_region());
    }
  }

  BandwidthRow row() const {
    BandwidthRow out;
    out.n_threads = pool_.n_workers();
    out.streams = typical(streams_, 1);
    out.blocks_32k = typical(blocks_32k_, 1);
    out.blocks_4k = typical(blocks_4k_, 1);
    out.multiply_add_rate = typical(rates_, 1);
    out.fork_join = quantile(forks_, 0.5);
    out.fork_join_p99 = quantile(forks_, 0.99);
    out.fork_join_asleep = quantile(forks_asleep_, 0.5);
    return out;
  }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  double empty_region() {  // microseconds
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    pool_.run_on_all([](uint32_t) {});
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  ThreadPool pool_;
  BandwidthMeter memory_;
  std::vector<double> streams_, blocks_32k_, blocks_4k_, rates_, forks_, forks_asleep_;
};

}  // namespace

std::vector<uint32_t> default_thread_counts(const Topology& topology) {
  const auto n_cores = static_cast<uint32_t>(topology.cores().size());
  std::vector<uint32_t> out;
  for (uint32_t n = 1; n < n_cores; n *= 2) out.push_back(n);
  out.push_back(n_cores);
  return out;
}

BandwidthReport measure_bandwidth(const Topology& topology, const std::vector<uint32_t>& threads,
                                  uint64_t bytes, uint32_t n_repetitions) {
  if (bytes == 0)
    bytes =
        std::min<uint64_t>(uint64_t{1} << 30, memory_info().available_bytes / 4 / threads.size());
  std::vector<std::unique_ptr<Meter>> meters;
  for (const uint32_t n : threads) meters.push_back(std::make_unique<Meter>(topology, n, bytes));
  ProgressBar bar("bandwidth");
  for (uint32_t repetition = 0; repetition < n_repetitions; ++repetition) {
    for (const auto& meter : meters) {
      meter->sample();
      stop_if_interrupted();
    }
    bar.update(repetition + 1, n_repetitions);
  }
  BandwidthReport out;
  out.bytes = meters.back()->bytes();
  out.n_repetitions = n_repetitions;
  for (const auto& meter : meters) out.rows.push_back(meter->row());
  return out;
}

}  // namespace kvasir::tool
