// What is kept per sequence beside the records in the host's slab.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/state.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvasir::infinigen {

struct Head {                                // of one layer and kv head
  std::vector<double> q_sum, k_sum, recent;  // [head_dim] sums of |q A|, |k A|; q since the refresh
  std::vector<uint16_t> columns;             // most important first; empty: not chosen yet
  std::vector<uint32_t> used;                // [token] of the pool: hits, or kv_len of the last one
};
struct Layer {
  std::vector<Head> heads;
  // kv_len of the last decode query in `recent`: a repeated call adds nothing.
  uint32_t counted = 0;
};
struct State {
  std::vector<Layer> layers;  // empty: as new
  // Sums keep what the forgotten queries added; columns stay, and so do the records.
  void truncate(uint32_t kv_len);
};

// The numbers a saved state was made with, and those of the run that reads it.
struct StateShape {
  uint32_t n_layers, n_kv_heads, head_dim, n_columns, max_context;
};
void save_state(const State& state, const StateShape& shape, sdk::StateWriter& out);
// `fresh`: a state as new, whose lists have the lengths they must have.
State load_state(State fresh, const StateShape& shape, sdk::StateReader& in);

}  // namespace kvasir::infinigen
