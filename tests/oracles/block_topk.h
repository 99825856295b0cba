// The best blocks between sink and window by the scores of their representatives, per kv head or
// for all heads of a layer: Quest (arXiv:2406.10774) with min/max, KTransformers with the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tests/oracles/choice.h"

namespace kvasir::oracle::block_topk {

// Score of a block for one query head.
using Score = std::function<double(uint32_t q_head, uint32_t block)>;

// One choice per kv head, or one for all of them.
inline std::vector<Choice> choose(const Heads& heads, const Indices& candidates,
                                  uint64_t budget_blocks, const Score& score, Reduce rule,
                                  bool shared, double softmax_scale) {
  const uint32_t n_choices = shared ? 1 : heads.n_kv_heads;
  const uint32_t members = heads.n_q_heads / n_choices;
  std::vector<Choice> out;
  for (uint32_t i = 0; i < n_choices; ++i) {
    Vectors per_head;
    for (uint32_t h = i * members; h < (i + 1) * members; ++h) {
      per_head.emplace_back();
      for (const uint32_t block : candidates) per_head.back().push_back(score(h, block));
    }
    Choice choice{candidates, reduce(per_head, rule, softmax_scale), budget_blocks, 0};
    if (rule == Reduce::kSum || rule == Reduce::kMean)  // terms that cancel leave their rounding
      for (size_t c = 0; c < candidates.size(); ++c) {
        double terms = 0;
        for (const Vector& head : per_head) terms += std::abs(head[c]);
        if (rule == Reduce::kMean) terms /= members;
        choice.scale = std::max(choice.scale, terms);
      }
    out.push_back(choice);
  }
  return out;
}

// Blocks of KTransformers' published configuration (section 2.7 of its operator): what a step
// attends, in blocks and tokens, from `init` initial, `local` local and `pick` selected blocks.
struct Lengths {
  uint32_t candidates = 0;  // blocks [init, full - local)
  uint32_t blocks = 0;      // of the table, the open one included
  uint32_t tokens = 0;
  bool everything = false;
};
inline Lengths lengths(uint32_t n, uint32_t block_size, uint32_t init, uint32_t local,
                       uint32_t pick) {
  const uint32_t full = n / block_size, rest = n % block_size;
  if (full <= init + pick + local) return {0, full + (rest ? 1 : 0), n, true};
  const uint32_t taken = init + pick + local;
  return {full - local - init, taken + (rest ? 1 : 0), taken * block_size + rest, false};
}

}  // namespace kvasir::oracle::block_topk
