// What SnapKV and methods like it share: the last queries of the prompt vote for the tokens before
// the window, votes are pooled over neighbours, and at the prompt's end the best of each kv head
// stay. Li et al. 2024, "SnapKV", arXiv:2404.14469. For plugins that link kvasir::kernels.
//
//   class Method {
//    public:
//     static constexpr kvasir_desc kDesc = …;           // options: kVoteOptions among them
//     explicit Method(const sdk::Options& options);
//     void bind(const sdk::Host&, const kvasir_geometry&, uint32_t budget_tokens);
//     uint64_t keep(uint32_t layer, uint64_t n_candidates) const;  // how many of a list stay
//     uint64_t max_keep() const;                                   // most over all layers
//   };
//   … sdk::entry<sdk::PromptVotes<Method>>(host, request, err)
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/sequences.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "plugins/shared/keep_best.h"
#include "plugins/shared/layers.h"
#include "plugins/shared/pooling.h"
#include "plugins/shared/token_budget.h"
#include "plugins/shared/vote_sums.h"

namespace kvasir::sdk {

inline constexpr const char* kCapAliases[] = {"max_capacity_prompts", nullptr};
inline constexpr const char* kWindowAliases[] = {"observation_window", nullptr};
inline constexpr const char* kVoteModeNames[] = {"evict", "retrieve"};
inline constexpr std::array kVoteOptions = {
    budget_option(2016, kBudgetGroup),
    cap_option("max_capacity_prompt", kCapAliases),
    int_option({.key = "window_size",
                .help = "last queries of the prompt that vote; not set: cache.window_tokens",
                .unit = "tokens",
                .aliases = kWindowAliases,
                .flags = KVASIR_OPTION_OPTIONAL},
               0, 1, INT32_MAX),
    int_option({.key = "kernel_size",
                .help = "neighbours a vote is pooled over, odd; 1 = no pooling",
                .unit = "tokens"},
               5, 1, 255),
    enum_option({.key = "pooling", .help = "mean or maximum of the neighbours"}, kPoolingNames, 0),
    bool_option({.key = "pool_first",
                 .help = "pool the votes of each query head before those of a group become one"},
                false),
    enum_option({.key = "mode", .help = "lose the others for good, or until the next prompt"},
                kVoteModeNames, 0)};

struct Votes {
  std::vector<VoteSums> layers;                // lists: [head], or [head][query head] when apart
  void truncate(uint32_t) { layers.clear(); }  // cut, a prompt has no end to be observed at
};

template <class Method>
class PromptVotes : public Sequences<Votes> {
 public:
  static constexpr kvasir_desc kDesc = Method::kDesc;

  PromptVotes(const Host& host, const Options& options)
      : host_(host),
        method_(options),
        budget_(options, "max_capacity_prompt"),
        n_queries_(options.u32_or("window_size", 0)),
        kernel_(options.u32("kernel_size")),
        pooling_(static_cast<Pooling>(options.choice("pooling"))),
        pool_first_(options.boolean("pool_first")),
        action_(options.choice("mode") == 0 ? KVASIR_ACTION_EVICT : KVASIR_ACTION_RESTRICT) {
    if (kernel_ % 2 == 0) {
      fail_invalid("kernel_size = " + std::to_string(kernel_) + " is even: a token stands in the " +
                   "middle of its neighbours, use " + std::to_string(kernel_ + 1));
    }
  }

  void validate(const kvasir_geometry& geometry) const {
    budget_.tokens(geometry);
    if (n_queries_ == 0 && geometry.window_tokens == 0) {
      fail_invalid("nobody votes: set window_size, or window_tokens of the cache");
    }
    MassHeads::validate(geometry);
  }

  void bind(const kvasir_geometry& geometry) {
    n_layers_ = geometry.n_layers;
    n_sparse_layers_ = n_sparse_layers(geometry);
    max_context_ = geometry.max_context;
    heads_ = MassHeads(geometry, pool_first_);
    take_max_ = geometry.gqa_reduce == KVASIR_REDUCE_MAX;
    if (n_queries_ == 0) n_queries_ = geometry.window_tokens;
    budget_.log(host_, geometry);
    method_.bind(host_, geometry, budget_.tokens(geometry));
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.max_units = method_.max_keep();
    out.plans.at = KVASIR_PLAN_AT_PROMPT_END;
    out.plans.action = action_;
    heads_.ask(out);
    out.mass.at = KVASIR_MASS_AT_PREFILL;
    out.mass.last_queries = n_queries_;
    out.memory.state_peak_bytes =
        VoteSums::bytes(heads_.n_lists(), max_context_) * n_sparse_layers_;
  }

  void observe(const Step& step, const kvasir_mass& mass) {
    const uint32_t n_lists = heads_.n_lists();
    check_mass(mass, step.n_seqs() * n_lists);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      const kvasir_step_seq& seq = step.seq(s);
      layer_votes(seq, step.layer()).add(seq, mass, uint64_t{s} * n_lists, n_lists);
    }
  }

  const void* get_extension(const char* id) const { return state_if_asked<PromptVotes>(id); }
  void save(uint64_t seq, StateWriter& out) {
    out.put(static_cast<uint32_t>(state_of(seq).layers.size()));
    for (const VoteSums& layer : state_of(seq).layers) layer.save(out);
  }
  void load(uint64_t seq, StateReader& in) {
    Votes state;
    const auto n = in.take<uint32_t>();
    if (n != 0 && n != n_layers_) in.damaged("it has " + std::to_string(n) + " layers");
    for (uint32_t layer = 0; layer < n; ++layer) {
      state.layers.push_back(VoteSums::load(heads_.n_lists(), max_context_, in));
    }
    state_of(seq) = std::move(state);
  }

  void evict_plan(const Step& step, kvasir_selection& out) {
    const auto layer_of = [&](uint32_t s) -> VoteSums& {
      return layer_votes(step.seq(s), step.layer());
    };
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      if (layer_of(s).votes.empty() || layer_of(s).prompt_end < step.seq(s).unit_end) {
        fail_invalid("evict_plan: no query of this prompt was observed in layer " +
                     std::to_string(step.layer()));
      }
    }
    keep_best(
        host_, step, heads_.n_heads(), PlanList::kKept,
        [&](uint32_t, const Candidates& from) { return method_.keep(step.layer(), from.size()); },
        [&](uint32_t i, const Candidates& from, float* score) {
          const uint32_t s = i / heads_.n_heads();
          const std::vector<float> pooled =
              pooled_votes(layer_of(s), i % heads_.n_heads(), step.seq(s).unit_end);
          for (uint64_t c = 0; c < from.size(); ++c) score[c] = pooled[from[c]];
        },
        out);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) layer_of(s) = {};
  }

 private:
  VoteSums& layer_votes(const kvasir_step_seq& seq, uint32_t layer) {
    Votes& state = state_of(seq.id);
    if (state.layers.empty()) state.layers.resize(n_layers_);
    return state.layers[layer];
  }

  // Of the tokens [0, end): what lies in the window does not vote for its neighbours.
  std::vector<float> pooled_votes(const VoteSums& state, uint32_t head, uint32_t end) const {
    std::vector<float> votes(end), pooled(end);
    const uint32_t n_lists = heads_.n_lists_per_head();
    for (uint32_t i = 0; i < n_lists; ++i) {
      const float* from = state.list(uint64_t{head} * n_lists + i);
      if (pool_first_) {
        pool(pooling_, from, end, kernel_, pooled.data());
        from = pooled.data();
      }
      for (uint32_t t = 0; t < end; ++t) {
        votes[t] = take_max_ ? std::max(votes[t], from[t]) : votes[t] + from[t];
      }
    }
    if (pool_first_) return votes;
    pool(pooling_, votes.data(), end, kernel_, pooled.data());
    return pooled;
  }

  Host host_;
  Method method_;
  TokenBudget budget_;
  uint32_t n_queries_;
  uint32_t kernel_;
  Pooling pooling_;
  bool pool_first_;
  bool take_max_ = false;  // the largest vote of a group, else the sum
  uint32_t action_;
  uint32_t n_layers_ = 0, n_sparse_layers_ = 0, max_context_ = 0;
  MassHeads heads_;
};

}  // namespace kvasir::sdk
