// How fast blocks of K and V travel to this device while it computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::bench {

struct TravelCase {
  uint32_t n_blocks;          // of 8 kv heads, in f16
  uint32_t block_size;        // tokens
  uint64_t beside_bytes = 0;  // that a kernel reads, again and again, while they travel
};

// A table of what comes from main memory: in one copy of pinned memory; as kvasir.gpu_tiered takes
// blocks up, whole ones through 4 MiB of pinned memory, and of others one token in sixteen, packed
// and laid in place by a kernel. Beside each a thread computes: how much of the travelling alone
// takes no more time then.
void print_travel(const TravelCase& c, uint32_t n_runs);

}  // namespace kvasir::bench
