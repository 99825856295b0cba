// What the machine can do, measured in the run and with the threads of the run, and what a
// measurement reaches of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/platform/bandwidth.h"
#include "tools/kvasir/bench/select_figures.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct MeasuredLimits {
  uint32_t n_threads = 0;
  uint32_t n_samples = 0;
  Typical read_bandwidth;     // bytes/s, in streams
  Typical multiply_add_rate;  // f32 multiply-adds/s (2 flop each), from registers
};
// {"threads", "samples", "read_bytes_per_second", …_spread, "multiply_adds_per_second", …_spread}.
Json to_json(const MeasuredLimits& limits);
// "Reads 33.10 GB/s (spread 2.1 %), computes 146.00 GFLOP/s in f32 (0.3 %); 2 threads, 5 samples".
std::string to_text(const MeasuredLimits& limits);

// Takes samples between the measurements that are compared to the limits, so that a noisy minute
// hits both.
class LimitMeter {
 public:
  // bytes: read per sample, 0 as BandwidthMeter has it. The pool must outlive the meter.
  explicit LimitMeter(ThreadPool& pool, size_t bytes = 0) : pool_(pool), memory_(pool, bytes) {}
  void sample();
  MeasuredLimits limits() const;  // of the samples so far

 private:
  ThreadPool& pool_;
  BandwidthMeter memory_;
  std::vector<double> bandwidths_, rates_;
};

// achieved / limit; none where one of them is not known.
std::optional<double> share_of(double achieved, double limit);
// The same for a table: "83 %"; "-".
std::string share_text(double achieved, double limit);
std::string percent_text(double share);  // "2.1 %"

}  // namespace kvasir::tool
