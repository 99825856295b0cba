// What selectors share that take the blocks with the best scores, wherever they choose: a budget in
// tokens or in blocks, checks, and the layout of the lists.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <string>

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

class BlockBudget {
 public:
  // options: at least budget_tokens_option() and budget_blocks_option().
  explicit BlockBudget(const Options& options)
      : budget_tokens_(options.u32_or("budget_tokens", 0)),
        budget_blocks_(options.u32_or("budget_blocks", 0)) {}

  void validate(const kvasir_geometry& geometry) const { blocks_of(geometry); }

  void bind(const kvasir_geometry& geometry) {
    max_blocks_ = blocks_of(geometry);
    n_heads_ = geometry.head_select_shared ? 1 : geometry.n_kv_heads;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = scope();
    out.max_units = max_blocks_;
    out.flags = KVASIR_LIMITS_BEST_SCORES;
  }

  uint32_t max_blocks() const { return max_blocks_; }  // of a list
  uint32_t n_heads() const { return n_heads_; }        // lists per sequence
  uint32_t n_lists(const Step& step) const { return step.n_seqs() * n_heads_; }
  Candidates candidates(const Step& step, uint32_t list) const {
    return step.candidates(list / n_heads_, list % n_heads_);
  }

  // Lists of so many indices as will be chosen; before that, whether each candidate has a score.
  void lay_out(const Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    check_scores(step, in);
    lay_out_lists(out, scope(), n_lists(step), [&](uint32_t i) {
      return std::min<uint64_t>(candidates(step, i).size(), max_blocks_);
    });
  }

 private:
  uint32_t blocks_of(const kvasir_geometry& geometry) const {
    return budget_blocks_ != 0 ? budget_blocks_
                               : tokens_to_blocks("budget_tokens", budget_tokens_, geometry);
  }
  uint32_t scope() const { return n_heads_ == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD; }

  void check_scores(const Step& step, const kvasir_sel_in& in) const {
    const uint32_t n = n_lists(step);
    bool fits = in.n_score_heads == n_heads_ && in.score_offsets;
    for (uint32_t i = 0; fits && i < n; ++i)
      fits = in.score_offsets[i + 1] - in.score_offsets[i] == candidates(step, i).size();
    fits = fits && (in.scores.data || in.score_offsets[n] == 0);
    if (!fits) fail_invalid("select: there must be one score per candidate and head");
  }

  uint32_t budget_tokens_, budget_blocks_;  // 0: the other one decides
  uint32_t max_blocks_ = 0;
  uint32_t n_heads_ = 1;
};

}  // namespace kvasir::sdk
