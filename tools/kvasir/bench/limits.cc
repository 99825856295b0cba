// See limits.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/limits.h"

#include "core/platform/arithmetic_rate.h"
#include "core/platform/thread_pool.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

Json to_json(const MeasuredLimits& l) {
  return {{"threads", l.n_threads},
          {"samples", l.n_samples},
          {"read_bytes_per_second", l.read_bandwidth.middle},
          {"read_spread", l.read_bandwidth.spread},
          {"multiply_adds_per_second", l.multiply_add_rate.middle},
          {"multiply_adds_spread", l.multiply_add_rate.spread}};
}

std::string to_text(const MeasuredLimits& l) {
  return format("Reads %.2f GB/s (spread %s), computes %.2f GFLOP/s in f32 (%s); ",
                l.read_bandwidth.middle / 1e9, percent_text(l.read_bandwidth.spread).c_str(),
                2.0 * l.multiply_add_rate.middle / 1e9,
                percent_text(l.multiply_add_rate.spread).c_str()) +
         format("%u threads, %u samples", l.n_threads, l.n_samples);
}

void LimitMeter::sample() {
  bandwidths_.push_back(memory_.read_streams());
  rates_.push_back(measure_multiply_add_rate(pool_, 1));
}

MeasuredLimits LimitMeter::limits() const {
  MeasuredLimits out;
  out.n_threads = pool_.n_workers();
  out.n_samples = static_cast<uint32_t>(bandwidths_.size());
  out.read_bandwidth = typical(bandwidths_, 1);
  out.multiply_add_rate = typical(rates_, 1);
  return out;
}

std::optional<double> share_of(double achieved, double limit) {
  if (achieved <= 0 || limit <= 0) return std::nullopt;
  return achieved / limit;
}

std::string share_text(double achieved, double limit) {
  const std::optional<double> share = share_of(achieved, limit);
  return share ? format("%.0f %%", 100.0 * *share) : "-";
}

std::string percent_text(double share) { return format("%.1f %%", 100.0 * share); }

}  // namespace kvasir::tool
