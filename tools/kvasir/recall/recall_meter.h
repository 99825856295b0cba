// How much attention mass a strategy of `kvasir bench recall` captured, and how much the best and a
// random choice of the same size, unit and scope would have captured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/kvasir/recall/recall_world.h"

namespace kvasir::tool {

// Which heads share one choice. The choices of query heads are attended, counted and compared as
// their union per kv head.
enum class RecallScope { kSequence, kKvHead, kQHead };

// Means over decoded queries, query heads, and all layers but the first.
struct RecallFigures {
  double attended = 0;          // tokens per kv head and step
  double captured = 0;          // share of the attention mass on these tokens
  double best = 0;              // of an exact choice of as many tokens beside sink and window
  double random = 0;            // of a random choice, expected
  double random_deviation = 0;  // standard deviation of one random choice
  double needles = 0;           // share of the needles' mass
  double top_k = 0;             // share of the tokens with the largest true mass
  double error = 0;             // |output - dense output| / |dense output|
};

class RecallMeter {
 public:
  struct Choice {
    uint32_t unit_tokens = 1;  // 1, or the tokens of a block
    RecallScope scope = RecallScope::kKvHead;
  };
  RecallMeter(const RecallWorld& world, const RecallTruth& truth, Choice choice);

  // The tokens that a kv head attends to in this step, positions ascending.
  void attended(uint32_t layer, uint32_t kv_head, std::span<const uint32_t> tokens);
  // Output [n_q_heads][head_dim] of the token at `pos`, after attended() of all kv heads. Tokens of
  // the prompt and the first layer, which is dense, do not count.
  void output(uint32_t layer, uint32_t pos, const float* o);
  RecallFigures figures() const;
  std::vector<RecallFigures> layer_figures() const;  // [n_layers - 1]: of layer 1, 2, ...

 private:
  void add_q_head(uint32_t layer, uint32_t pos, uint32_t q_head, const std::vector<uint32_t>& seen,
                  const float* o);
  void add_bounds(uint32_t layer, uint32_t pos, uint32_t first_q_head, uint32_t n_q_heads,
                  size_t n_attended);
  struct Sums {
    RecallFigures figures;
    uint64_t n = 0;  // query heads counted
  };
  static RecallFigures mean(const Sums& sums);

  const RecallWorld& world_;
  const RecallTruth& truth_;
  const RecallShape& shape_;
  Choice choice_;
  std::vector<std::vector<uint32_t>> attended_;  // [kv_head]
  std::vector<Sums> sums_;                       // [n_layers - 1]
};

}  // namespace kvasir::tool
