// What selectors share that take the blocks with the best scores: a budget in tokens or in blocks,
// checks, and the choice itself. For plugins that link kvasir::kernels.
//
//   class Mine : public sdk::BlockChoice {
//    public:
//     static constexpr kvasir_desc kDesc = …;  // options: at least sdk::budget_tokens_option() and
//                                              // sdk::budget_blocks_option()
//     using BlockChoice::BlockChoice;
//   };
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <string>

#include "kernels/topk.h"

namespace kvasir::sdk {

constexpr kvasir_option_schema budget_tokens_option(int64_t def,
                                                    const char* const* aliases = nullptr) {
  return int_option({.key = "budget_tokens",
                     .help = "selected per layer, kv head and step, rounded down to blocks",
                     .unit = "tokens",
                     .aliases = aliases,
                     .group = "budget"},
                    def, 1, INT32_MAX);
}
constexpr kvasir_option_schema budget_blocks_option(const char* const* aliases) {
  return int_option({.key = "budget_blocks",
                     .help = "the same in blocks, instead of budget_tokens",
                     .unit = "blocks",
                     .aliases = aliases,
                     .flags = KVASIR_OPTION_OPTIONAL,
                     .group = "budget"},
                    0, 1, INT32_MAX);
}

// What a paper counts in tokens, in whole blocks; less than one of them is a mistake.
inline uint32_t tokens_to_blocks(const char* key, uint32_t tokens, const kvasir_geometry& g) {
  if (tokens < g.block_size) {
    fail_invalid(std::string(key) + " = " + std::to_string(tokens) +
                 " is less than one block (block_size = " + std::to_string(g.block_size) +
                 "): raise " + key + " or lower block_size");
  }
  return tokens / g.block_size;
}

class BlockChoice {
 public:
  // higher_wins: of equal scores, the higher block goes first.
  BlockChoice(const Host& host, const Options& options, bool higher_wins = false)
      : host_(host),
        budget_tokens_(options.u32_or("budget_tokens", 0)),
        budget_blocks_(options.u32_or("budget_blocks", 0)),
        higher_wins_(higher_wins) {}

  void validate(const kvasir_geometry& geometry) const { max_blocks(geometry); }

  void bind(const kvasir_geometry& geometry) {
    max_blocks_ = max_blocks(geometry);
    n_heads_ = geometry.head_select_shared ? 1 : geometry.n_kv_heads;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = scope();
    out.max_units = max_blocks_;
    out.flags = KVASIR_LIMITS_BEST_SCORES;
  }

  void select(const Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    const uint32_t n_lists = step.n_seqs() * n_heads_;
    const auto candidates = [&](uint32_t i) { return step.candidates(i / n_heads_, i % n_heads_); };
    check_scores(in, n_lists, candidates);
    const float* scores = floats(in.scores, "the scores");
    lay_out_lists(out, scope(), n_lists, [&](uint32_t i) {
      return std::min<uint64_t>(candidates(i).size(), max_blocks_);
    });
    host_.parallel_for(n_lists, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
        const Candidates from = candidates(i);
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

  uint32_t max_blocks(const kvasir_geometry& geometry) const {
    return budget_blocks_ != 0 ? budget_blocks_
                               : tokens_to_blocks("budget_tokens", budget_tokens_, geometry);
  }
  uint32_t scope() const { return n_heads_ == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD; }

  template <class CandidatesOf>
  void check_scores(const kvasir_sel_in& in, uint32_t n_lists,
                    const CandidatesOf& candidates) const {
    bool fits = in.n_score_heads == n_heads_ && in.score_offsets;
    for (uint32_t i = 0; fits && i < n_lists; ++i) {
      fits = in.score_offsets[i + 1] - in.score_offsets[i] == candidates(i).size();
    }
    fits = fits && (in.scores.data || in.score_offsets[n_lists] == 0);
    if (!fits) fail_invalid("select: there must be one score per candidate and head");
  }

  Host host_;
  uint32_t budget_tokens_, budget_blocks_;  // 0: the other one decides
  bool higher_wins_;
  uint32_t max_blocks_ = 0;
  uint32_t n_heads_ = 1;  // lists per sequence
};

}  // namespace kvasir::sdk
