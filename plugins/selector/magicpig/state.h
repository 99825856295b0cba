// What is kept per sequence: hash tables, and the prompt's votes until its end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/sdk/vote_sums.h"
#include "plugins/selector/magicpig/tables.h"

namespace kvasir::magicpig {

// One kv head of one layer. Everything behind a pointer is shared with forks and never changes.
struct Head {
  std::shared_ptr<const std::vector<float>> mean;  // null: nothing hashed yet
  std::vector<std::shared_ptr<const Segment>> segments;
  std::vector<uint32_t> fixed;  // the static tokens among the candidates, ascending
};
struct Layer {
  std::vector<Head> heads;
  uint32_t prompt_end = 0;        // hashed by the first build: forgotten, all is built anew
  uint32_t hashed_end = 0;        // candidates from here on are attended as they are
  std::vector<uint32_t> skipped;  // before hashed_end, but never hashed: attended as they are
  sdk::VoteSums votes;            // a row per kv head, until the prompt's end

  // Forgets tokens from kv_len on. False: the mean is another without them, all is forgotten.
  bool truncate(uint32_t kv_len);
};
struct State {
  std::vector<Layer> layers;
};

}  // namespace kvasir::magicpig
