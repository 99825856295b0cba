// At the prompt's end its last queries vote for the blocks that stay reachable during the answer:
// the preselection of KTransformers' long-context mode, SnapKV (arXiv:2404.14469) over blocks that
// gives nothing up for good. Chained before a selector that chooses among them at every step.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/sequences.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plugins/shared/block_choice.h"
#include "plugins/shared/layers.h"
#include "plugins/shared/token_budget.h"
#include "plugins/shared/vote_sums.h"

namespace {
using namespace kvasir;

constexpr const char* kCountAliases[] = {"budget_blocks", nullptr};
constexpr const char* kHeadModes[] = {"shared", "separate"};
constexpr const char* kCapacityKey = "max_capacity_prompt";
constexpr uint32_t kLastLayerRanks = 5;  // best blocks but one of the last layer that others take

constexpr std::array kOptions = {
    sdk::bool_option({.key = "preselect_block", .help = "false: everything stays reachable"}, true),
    sdk::int_option({.key = "preselect_block_count",
                     .help = "blocks that stay reachable, per layer",
                     .unit = "blocks",
                     .aliases = kCountAliases,
                     .group = "budget"},
                    96, 1, INT32_MAX),
    sdk::int_option({.key = "budget_tokens",
                     .help = "the same in tokens, rounded down to blocks",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL,
                     .group = "budget"},
                    0, 1, INT32_MAX),
    sdk::int_option({.key = kCapacityKey,
                     .help = "the same in tokens with sink and window counted in (SnapKV)",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL,
                     .group = "budget"},
                    0, 1, INT32_MAX),
    sdk::int_option({.key = "kernel_size",
                     .help = "half of it on either side of a block votes for the block too; "
                             "default: half a block",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 1, INT32_MAX),
    sdk::int_option(
        {.key = "window_size", .help = "queries at the prompt's end that vote", .unit = "tokens"},
        128, 1, INT32_MAX),
    sdk::enum_option({.key = "head_select_mode",
                      .help = "one choice for all heads of a layer, or one per kv head"},
                     kHeadModes, 0),
    sdk::bool_option({.key = "union_with_last_layer",
                      .help = "every layer also keeps what the last one ranks 2nd to 6th"},
                     true),
};

// One prompt's votes by layer, a list per head. They live from its last chunk to its end.
struct Votes {
  std::map<uint32_t, sdk::VoteSums> layers;
  void truncate(uint32_t) { layers.clear(); }
};

class Preselect : public sdk::Sequences<Votes> {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.preselect",
                     .version = "0.1.0",
                     .name = "Preselection",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps reachable what the prompt's last queries attend to most.",
                     .options = kOptions,
                     .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
                     .needs = KVASIR_NEED_MASS});

  Preselect(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        enabled_(options.boolean("preselect_block")),
        n_blocks_(options.u32_or("preselect_block_count", 0)),
        budget_tokens_(options.u32_or("budget_tokens", 0)),
        window_size_(options.u32("window_size")),
        separate_(options.choice("head_select_mode") == 1),
        with_last_layer_(options.boolean("union_with_last_layer")) {
    if (options.delivered(kCapacityKey)) capacity_.emplace(options, kCapacityKey);
    if (options.delivered("kernel_size")) kernel_size_ = options.u32("kernel_size");
  }

  void validate(const kvasir_geometry& geometry) const {
    max_blocks(geometry);
    if (separate_ && geometry.head_select_shared)
      sdk::fail_invalid(
          "head_select_mode = \"separate\" of preselect needs head_select_mode = \"separate\" in "
          "[cache]: what follows chooses for all heads at once");
  }

  void bind(const kvasir_geometry& geometry) {
    block_size_ = geometry.block_size;
    n_layers_ = geometry.n_layers;
    n_sparse_layers_ = sdk::n_sparse_layers(geometry);
    max_context_ = geometry.max_context;
    n_heads_ = separate_ ? geometry.n_kv_heads : 1;
    n_blocks_ = max_blocks(geometry);
    if (capacity_) capacity_->log(host_, geometry, geometry.block_size);
    margin_ = (kernel_size_ ? *kernel_size_ : block_size_ / 2) / 2;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = separate_ ? KVASIR_SCOPE_KV_HEAD : KVASIR_SCOPE_SEQUENCE;
    if (!enabled_) return;
    out.max_units = n_blocks_;
    out.plans.at = KVASIR_PLAN_AT_PROMPT_END;
    out.plans.action = KVASIR_ACTION_RESTRICT;
    out.mass.at = KVASIR_MASS_AT_PREFILL;
    out.mass.level = KVASIR_MASS_TOKEN;
    out.mass.reduce = separate_ ? KVASIR_MASS_SUM_KV_HEAD : KVASIR_MASS_SUM_ALL;
    out.mass.last_queries = window_size_;
    out.memory.state_peak_bytes = sdk::VoteSums::bytes(n_heads_, max_context_) * n_sparse_layers_;
  }

  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    sdk::check_mass(mass, step.n_seqs() * n_heads_);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      const kvasir_step_seq& seq = step.seq(s);
      state_of(seq.id).layers[step.layer()].add(seq, mass, uint64_t{s} * n_heads_, n_heads_);
    }
  }

  void evict_plan(const sdk::Step& step, kvasir_selection& out) {
    const uint32_t n_lists = step.n_seqs() * n_heads_;
    std::vector<std::optional<std::vector<uint32_t>>> kept(n_lists);
    for (uint32_t i = 0; i < n_lists; ++i) kept[i] = table(step, i / n_heads_, i % n_heads_);
    sdk::lay_out_lists(out, separate_ ? KVASIR_SCOPE_KV_HEAD : KVASIR_SCOPE_SEQUENCE, n_lists,
                       [&](uint32_t i) { return uint64_t{kept[i] ? kept[i]->size() : 0}; });
    for (uint32_t i = 0; i < n_lists; ++i) {
      if (!kept[i]) {
        out.list_flags[i] = KVASIR_LIST_ALL;
        continue;
      }
      std::sort(kept[i]->begin(), kept[i]->end());
      std::copy(kept[i]->begin(), kept[i]->end(), sdk::list_indices(out, i).begin());
    }
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      auto& layers = state_of(step.seq(s).id).layers;
      if (!layers.empty() && layers.rbegin()->first == step.layer()) layers.clear();  // all planned
    }
  }

  const void* get_extension(const char* id) const { return sdk::state_if_asked<Preselect>(id); }
  void save(uint64_t seq, sdk::StateWriter& out) {
    const auto& layers = state_of(seq).layers;
    out.put(static_cast<uint32_t>(layers.size()));
    for (const auto& [layer, votes] : layers) {
      out.put(layer);
      votes.save(out);
    }
  }
  void load(uint64_t seq, sdk::StateReader& in) {
    Votes state;
    const auto n = in.take<uint32_t>();
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t layer = in.take_key(state.layers, n_layers_, "layers");
      state.layers[layer] = sdk::VoteSums::load(n_heads_, max_context_, in);
      if (state.layers[layer].votes.empty()) in.damaged("a layer without votes");
    }
    state_of(seq) = std::move(state);
  }

 private:
  uint32_t max_blocks(const kvasir_geometry& g) const {
    if (budget_tokens_) return sdk::tokens_to_blocks("budget_tokens", budget_tokens_, g);
    if (!capacity_) return n_blocks_;
    const uint32_t tokens = capacity_->tokens(g);
    if (tokens < g.block_size) {
      sdk::fail_invalid(std::string(kCapacityKey) + " leaves " + std::to_string(tokens) +
                        " tokens beside sink_tokens = " + std::to_string(g.sink_tokens) +
                        " and window_tokens = " + std::to_string(g.window_tokens) +
                        ", less than one block (block_size = " + std::to_string(g.block_size) +
                        "): raise it or lower block_size");
    }
    return tokens / g.block_size;
  }

  // What one list keeps of a layer; nothing: all of it.
  std::optional<std::vector<uint32_t>> table(const sdk::Step& step, uint32_t seq, uint32_t head) {
    const sdk::Candidates from = step.candidates(seq, head);
    if (from.size() <= n_blocks_) return std::nullopt;
    const auto& layers = state_of(step.seq(seq).id).layers;
    const auto own = layers.find(step.layer());
    if (own == layers.end()) return std::nullopt;
    const uint32_t end = step.seq(seq).unit_end;
    std::vector<uint32_t> best = ranked(own->second, head, from, end);
    const auto& [last_layer, last] = *layers.rbegin();
    if (with_last_layer_ && last_layer != step.layer()) {
      const std::vector<uint32_t> shared = ranked(last, head, from, end);
      for (size_t i = 1; i <= kLastLayerRanks && i < best.size(); ++i)
        if (std::find(best.begin(), best.end(), shared[i]) == best.end())
          best[best.size() - i] = shared[i];
    }
    return best;
  }

  // The n_blocks_ blocks with the most votes, best first. Tokens from block `end` on do not vote.
  std::vector<uint32_t> ranked(const sdk::VoteSums& sums, uint32_t head,
                               const sdk::Candidates& from, uint32_t end) const {
    const float* votes = sums.list(head);
    std::vector<float> score(from.size());
    const uint64_t n_tokens = std::min<uint64_t>(sums.prompt_end, uint64_t{end} * block_size_);
    for (uint64_t i = 0; i < from.size(); ++i) {
      const uint64_t first = uint64_t{from[i]} * block_size_;
      const uint64_t begin = first - std::min<uint64_t>(first, margin_);
      double sum = 0;
      for (uint64_t t = begin; t < std::min(n_tokens, first + block_size_ + margin_); ++t)
        sum += double{votes[t]};
      score[i] = static_cast<float>(sum);
    }
    std::vector<uint64_t> order(from.size());
    std::vector<uint32_t> best(n_blocks_);
    kernels::top_k(score.data(), score.size(), best.size(), best.data(), order.data());
    std::stable_sort(best.begin(), best.end(),
                     [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
    for (uint32_t& block : best) block = from[block];
    return best;
  }

  sdk::Host host_;
  bool enabled_;
  uint32_t n_blocks_;  // 0 until bind() where an alternative decides
  uint32_t budget_tokens_;
  std::optional<uint32_t> kernel_size_;
  std::optional<sdk::TokenBudget> capacity_;
  uint32_t window_size_;
  bool separate_, with_last_layer_;
  uint32_t block_size_ = 0, n_heads_ = 1, margin_ = 0, n_layers_ = 0, n_sparse_layers_ = 0,
           max_context_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.preselect", "0.1.0", Preselect)
