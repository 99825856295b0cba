// How fast blocks of keys are summarised, scored and chosen on this device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::bench {

struct SummaryCase {
  uint32_t batch, context, selected_blocks;
};

// A table of minmax and mean records in f16 of keys in f16, 32 query heads over 8 kv heads of 128,
// blocks of 128: bytes of keys or records that are read, beside `bandwidth` bytes per second; and
// the time in which each kv head's blocks are chosen.
void print_summaries(const SummaryCase& c, double bandwidth, uint32_t n_runs);

}  // namespace kvasir::bench
