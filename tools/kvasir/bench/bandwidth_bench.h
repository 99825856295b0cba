// What the machine's memory and the pool's threads can do, by number of threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/platform/topology.h"
#include "tools/kvasir/bench/select_figures.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct BandwidthRow {
  uint32_t n_threads = 0;
  Typical streams, blocks_32k, blocks_4k;  // bytes/s read
  Typical multiply_add_rate;               // f32 multiply-adds/s
  // Microseconds of an empty region of the pool: right behind another one, when workers still
  // spin, and a millisecond later, when they sleep.
  double fork_join = 0, fork_join_p99 = 0, fork_join_asleep = 0;
};

struct BandwidthReport {
  uint64_t bytes = 0;  // read per pass, about
  uint32_t n_repetitions = 0;
  std::vector<BandwidthRow> rows;
};

// Repetitions of all thread counts take turns. bytes 0: 1 GiB, or what a quarter of the available
// memory gives to each thread count.
BandwidthReport measure_bandwidth(const Topology& topology, const std::vector<uint32_t>& threads,
                                  uint64_t bytes, uint32_t n_repetitions);

Json to_json(const BandwidthReport& report);
std::string to_text(const BandwidthReport& report);

// 1, 2, 4, … and all cores.
std::vector<uint32_t> default_thread_counts(const Topology& topology);

}  // namespace kvasir::tool
