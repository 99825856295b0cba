// What selectors share that take the blocks with the best scores in host memory: a budget, and the
// choice itself. For plugins that link kvasir::kernels.
//
//   class Mine : public sdk::BlockChoice {
//    public:
//     static constexpr kvasir_desc kDesc = …;  // options: as BlockBudget has them
//     using BlockChoice::BlockChoice;
//   };
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/view.h>

#include <algorithm>

#include "kernels/topk.h"
#include "plugins/shared/block_budget.h"

namespace kvasir::sdk {

class BlockChoice : public BlockBudget {
 public:
  // higher_wins: of equal scores, the higher block goes first.
  BlockChoice(const Host& host, const Options& options, bool higher_wins = false)
      : BlockBudget(options), host_(host), higher_wins_(higher_wins) {}

  void select(const Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    lay_out(step, in, out);
    const float* scores = floats(in.scores, "the scores");
    // The lists of one sequence are alike. An even split leaves a worker those whose scores it has
    // refined (plugins/shared/coarse_first.h): they are in its cache.
    const uint64_t grain = step.n_seqs() == 1 ? 0 : 1;
    host_.parallel_for(n_lists(step), grain, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
        const Candidates from = candidates(step, i);
        const std::span<uint32_t> list = list_indices(out, i);
        take_best(scores + in.score_offsets[i], from.size(), list, worker);
        for (uint32_t& index : list) index = from[index];
      }
    });
  }

 private:
  // Places of the list.size() best of n scores, ascending.
  void take_best(const float* score, uint64_t n, std::span<uint32_t> list, uint32_t worker) const {
    const size_t words = kernels::top_k_scratch_bytes(n) / sizeof(uint64_t);
    const Scratch<uint64_t> scratch(host_, worker, words + (higher_wins_ ? n : 0));
    if (!higher_wins_) {
      kernels::top_k(score, n, list.size(), list.data(), scratch.data());
      return;
    }
    auto* backward = reinterpret_cast<float*>(scratch.data() + words);
    std::reverse_copy(score, score + n, backward);
    kernels::top_k(backward, n, list.size(), list.data(), scratch.data());
    std::reverse(list.begin(), list.end());
    for (uint32_t& place : list) place = static_cast<uint32_t>(n - 1 - place);
  }

  Host host_;
  bool higher_wins_;
};

}  // namespace kvasir::sdk
