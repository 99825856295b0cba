// What is kept per sequence: hash tables, and the prompt's votes until its end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/selector/magicpig/tables.h"
#include "plugins/shared/vote_sums.h"

namespace kvasir::magicpig {

// One kv head of one layer. Everything behind a pointer is shared with forks and never changes.
struct Head {
  std::shared_ptr<const std::vector<float>> mean;  // null: nothing hashed yet
  std::vector<std::shared_ptr<const Segment>> segments;
  std::vector<uint32_t> fixed;  // the static tokens among the candidates, ascending
};
struct Layer {
  std::vector<Head> heads;
  // The mean is that of a prompt, or of other tokens, before here: cut there, all is built anew.
  uint32_t mean_end = 0;
  uint32_t prompt_end = 0, prompt_hashed = 0;  // the latest prompt, and its candidates' end
  uint32_t hashed_end = 0;                     // tables have nothing from here on
  std::vector<uint32_t> skipped;  // before hashed_end, but never hashed: attended as they are
  sdk::VoteSums votes;            // a list per kv head, until the prompt's end

  // Candidates from here on are attended as they are, when those of a step end at unit_end: what
  // left the window is drawn from block by block. Tables may hold more after a cut.
  uint32_t drawn_end(uint32_t unit_end, uint32_t block_size) const;
  // Forgets tokens from kv_len on, of which the last window_tokens are no candidates. False: the
  // mean is another without them, all is forgotten.
  bool truncate(uint32_t kv_len, uint32_t window_tokens);
};
struct State {
  std::vector<Layer> layers;
};

// The numbers a state depends on.
struct StateShape {
  uint32_t n_layers, n_kv_heads, head_dim, max_context, n_bits, n_tables;
  TableLayout layout;
};
void save_state(const State& state, sdk::StateWriter& out);
State load_state(const StateShape& shape, sdk::StateReader& in);

}  // namespace kvasir::magicpig
