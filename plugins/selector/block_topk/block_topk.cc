// Attends to the blocks whose representatives score highest. With minmax this is Quest
// (arXiv:2406.10774); with mean, max or fixed it is kin to InfLLM (arXiv:2402.04617) and to the
// long-context mode of KTransformers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>

#include "kernels/topk.h"
#include "plugins/sdk/plugin.h"

namespace {
using namespace kvasir;

constexpr const char* kTokensAliases[] = {"token_budget", nullptr};
constexpr const char* kBlocksAliases[] = {"second_block_count", "second_select_num", "topk",
                                          "pick_block_num", nullptr};
constexpr std::array kOptions = {
    sdk::int_option({.key = "budget_tokens",
                     .help = "selected per layer, kv head and step, rounded down to blocks",
                     .unit = "tokens",
                     .aliases = kTokensAliases},
                    4096, 1, INT32_MAX),
    sdk::int_option({.key = "budget_blocks",
                     .help = "the same in blocks, instead of budget_tokens",
                     .unit = "blocks",
                     .aliases = kBlocksAliases,
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 1, INT32_MAX),
};

class BlockTopK {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.block_topk",
                     .version = "0.1.0",
                     .name = "Block top-k",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Attends to the blocks whose representatives score highest.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_SCORES});

  BlockTopK(const sdk::Host& host, const sdk::Options& options)
      : host_(host), budget_tokens_(options.u32("budget_tokens")) {
    if (!options.delivered("budget_blocks")) return;
    budget_blocks_ = options.u32("budget_blocks");
    if (options.set_by_user("budget_tokens")) {
      sdk::fail_invalid("budget_tokens = " + std::to_string(budget_tokens_) +
                        " and budget_blocks = " + std::to_string(budget_blocks_) +
                        " are both set: keep one of them");
    }
  }

  void validate(const kvasir_geometry& geometry) const {
    if (budget_blocks_ == 0 && budget_tokens_ < geometry.block_size) {
      sdk::fail_invalid(
          "budget_tokens = " + std::to_string(budget_tokens_) +
          " is less than one block (block_size = " + std::to_string(geometry.block_size) +
          "): raise budget_tokens or lower block_size");
    }
  }

  void bind(const kvasir_geometry& geometry) {
    max_blocks_ = budget_blocks_ != 0 ? budget_blocks_ : budget_tokens_ / geometry.block_size;
    n_heads_ = geometry.head_select_shared ? 1 : geometry.n_kv_heads;
    scope_ = geometry.head_select_shared ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = scope_;
    out.max_units = max_blocks_;
  }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    const uint32_t n_rows = step.n_rows() * n_heads_;
    const auto candidates = [&](uint32_t i) { return step.candidates(i / n_heads_, i % n_heads_); };
    check_scores(in, n_rows, candidates);
    sdk::lay_out_rows(out, scope_, n_rows, [&](uint32_t i) {
      return std::min<uint64_t>(candidates(i).size(), max_blocks_);
    });
    host_.parallel_for(n_rows, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
        const sdk::Candidates from = candidates(i);
        const std::span<uint32_t> row = sdk::row_indices(out, i);
        const sdk::Scratch<std::byte> scratch(host_, worker,
                                              kernels::top_k_scratch_bytes(from.size()));
        kernels::top_k(in.scores + in.score_offsets[i], from.size(), row.size(), row.data(),
                       scratch.data());
        for (uint32_t& index : row) index = from[index];
      }
    });
  }

 private:
  template <class Candidates>
  void check_scores(const kvasir_sel_in& in, uint32_t n_rows, const Candidates& candidates) const {
    bool fits = in.n_score_heads == n_heads_ && in.score_offsets;
    for (uint32_t i = 0; fits && i < n_rows; ++i) {
      fits = in.score_offsets[i + 1] - in.score_offsets[i] == candidates(i).size();
    }
    if (!fits) sdk::fail_invalid("block_topk: there must be one score per candidate and head");
  }

  sdk::Host host_;
  uint32_t budget_tokens_;
  uint32_t budget_blocks_ = 0;  // 0: not set
  uint32_t max_blocks_ = 0;
  uint32_t n_heads_ = 0;  // rows per sequence
  uint32_t scope_ = 0;
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "kvasir.block_topk\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<BlockTopK>(host, request, err);
}
