// What a strategy of `kvasir bench recall` captured, beside what the best and a random choice of
// the same size, unit and scope would have.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/kvasir/bench/recall_world.h"

namespace kvasir::tool {

// Who shares a choice. Sets of query heads are attended as their union per kv head, and are counted
// and compared as such.
enum class RecallScope { kSequence, kKvHead, kQHead };

// Means over decoded queries, layers but the first, and query heads.
struct RecallFigures {
  double attended = 0;  // tokens per kv head and step
  double captured = 0;  // share of the attention mass that lies on them
  double best = 0;      // the same of an exact choice of as many tokens beside sink and window
  double random = 0;    // the same, expected of a random choice
  double random_deviation = 0;  // standard deviation of one such draw
  double needles = 0;           // share of the needles' mass
  double top_k = 0;             // share of the heaviest tokens that the truth names
  double error = 0;             // |output - dense output| / |dense output|
};

class RecallMeter {
 public:
  struct Choice {
    uint32_t unit_tokens = 1;  // 1, or those of a block
    RecallScope scope = RecallScope::kKvHead;
  };
  RecallMeter(const RecallWorld& world, const RecallTruth& truth, Choice choice);

  // What a kv head attends to in the step at hand, positions ascending.
  void attended(uint32_t layer, uint32_t kv_head, std::span<const uint32_t> tokens);
  // Output [n_q_heads][head_dim] of the token at `pos`, after attended() of all kv heads. Tokens of
  // the prompt and the first layer, which is dense, do not count.
  void output(uint32_t layer, uint32_t pos, const float* o);
  RecallFigures figures() const;

 private:
  void add_q_head(uint32_t layer, uint32_t pos, uint32_t q_head, const std::vector<uint32_t>& seen,
                  const float* o);
  void add_bounds(uint32_t layer, uint32_t pos, uint32_t first_q_head, uint32_t n_q_heads,
                  size_t n_attended);

  const RecallWorld& world_;
  const RecallTruth& truth_;
  const RecallShape& shape_;
  Choice choice_;
  std::vector<std::vector<uint32_t>> attended_;  // [kv_head]
  RecallFigures sums_;
  uint64_t n_ = 0;  // query heads counted
};

}  // namespace kvasir::tool
