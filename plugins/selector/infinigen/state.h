// What is kept per sequence beside the records in the host's slab.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/state.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvasir::infinigen {

struct Head {  // of one layer and kv head
  // [head_dim] sums of |q A| and |k A|, of |q A| since the refresh. With skew_tokens those of q
  // q^T, [head_dim * (head_dim + 1) / 2]: what is on and right of the diagonal.
  std::vector<double> q_sum, k_sum, recent;
  std::vector<float> own_skew;    // [column][head_dim] made of q_sum, or empty
  std::vector<uint16_t> columns;  // most important first; empty: not chosen yet
  std::vector<uint32_t> used;     // [token] of the pool: hits, or kv_len of the last one
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
  bool makes_skew;  // skew_tokens
};
void save_state(const State& state, const StateShape& shape, sdk::StateWriter& out);
// `fresh`: a state as new, whose lists have the lengths they must have.
State load_state(State fresh, const StateShape& shape, sdk::StateReader& in);

}  // namespace kvasir::infinigen
