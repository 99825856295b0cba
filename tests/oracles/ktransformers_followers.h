// KTransformers' preselection and its representatives as followers of a duel.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/block_topk.h"
#include "tests/oracles/harness/duel.h"
#include "tests/oracles/ktransformers.h"
#include "tests/oracles/representative.h"
#include "tests/oracles/snapkv.h"

namespace kvasir::oracle::ktransformers {

using representative::Combine;

// Probability of every token from the prompt's last queries, [q_head][token].
inline Vectors importance(const Track& track, uint32_t layer, uint32_t last_queries) {
  const uint32_t n = track.size();
  const uint32_t w = std::min(n - track.prompt_begin(), last_queries);
  Vectors out;
  for (uint32_t h = 0; h < track.shape().heads.n_q_heads; ++h) {
    Vectors q;
    for (uint32_t pos = n - w; pos < n; ++pos) q.push_back(track.q(layer, h, pos));
    out.push_back(snapkv::vote(q, track.k(layer, track.shape().heads.kv_head(h)), track.scale()));
  }
  return out;
}

// The same of every layer.
inline std::vector<Vectors> importance(const Track& track, uint32_t last_queries) {
  std::vector<Vectors> out;
  for (uint32_t layer = 0; layer < track.shape().n_layers; ++layer)
    out.push_back(importance(track, layer, last_queries));
  return out;
}

// Whether rounding may order two of the items differently.
inline bool is_unsure(const Choice& choice) {
  Vector sorted = choice.score;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i + 1 < sorted.size(); ++i)
    if (sorted[i] - sorted[i + 1] < 1e-6 * sorted[i]) return true;
  return false;
}

struct Tally {
  uint64_t plans = 0, unsure = 0;
};

struct Preselected : Follower {
  Case of;
  Tally* tally;
  uint32_t last_queries, kernel_size;
  bool shared, share_last;
  std::vector<std::vector<Choice>> plan;  // [layer][kv_head]; empty: everything can be reached
  std::vector<std::vector<bool>> unsure;  // what the last layer's order decides
  uint32_t planned_end = 0;
  Preselected(const Case& c, uint32_t w, uint32_t kernel, bool one_for_all, bool last_layer,
              Tally* t)
      : of(c),
        tally(t),
        last_queries(w),
        kernel_size(kernel),
        shared(one_for_all),
        share_last(last_layer) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Preselected>(*this); }

  void prompted(const Track& track) override { vote(track, importance(track, last_queries)); }
  // all_votes[layer][q_head][token]
  void vote(const Track& track, const std::vector<Vectors>& all_votes) {
    const uint32_t n = track.size(), b = of.cache.block_size;
    const Heads& heads = of.shape.heads;
    const Indices candidates = candidate_blocks(of.cache, n, n);
    planned_end = n;
    plan.assign(of.shape.n_layers, std::vector<Choice>(heads.n_kv_heads));
    unsure.assign(of.shape.n_layers, std::vector<bool>(heads.n_kv_heads));
    for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
      std::vector<Indices> tables;
      for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) {
        const Vectors& votes = all_votes[layer];
        const uint32_t begin = shared ? 0 : g * heads.group();
        const uint32_t end = shared ? heads.n_q_heads : (g + 1) * heads.group();
        const Vector sum =
            reduce(Vectors(votes.begin() + begin, votes.begin() + end), Reduce::kSum);
        Choice& choice = plan[layer][g];
        choice = {candidates, {}, of.budget_tokens / b, Choice::kOfThreshold};
        choice.strict_ties = false;  // sums of other terms
        if (!candidates.empty()) {   // the sink votes for its neighbour, the window does not
          choice.score = ktransformers::pooled(sum, b, 0, candidates.back() + 1, kernel_size / 2);
          choice.score.erase(choice.score.begin(), choice.score.begin() + candidates[0]);
        }
        tables.push_back(ktransformers::table(choice));
      }
      if (share_last && choices_were_made(candidates)) {
        ktransformers::share_last_layer(tables);
        const bool unsure_last = is_unsure(plan.back()[g]);
        for (uint32_t layer = 0; layer + 1 < of.shape.n_layers; ++layer) {
          unsure[layer][g] = unsure_last || is_unsure(plan[layer][g]);
          if (unsure[layer][g]) continue;
          std::sort(tables[layer].begin(), tables[layer].end());
          plan[layer][g] = {tables[layer], Vector(tables[layer].size(), 1.0), tables[layer].size(),
                            0};
        }
      }
    }
  }
  bool choices_were_made(const Indices& candidates) const {
    return candidates.size() > of.budget_tokens / of.cache.block_size;
  }
  Expected expect(const Track&, uint32_t layer, uint32_t kv_head) override {
    if (plan.empty()) return {{0, 0}, of.cache.block_size, {}};
    Expected out(forced_blocks(of.cache, planned_end, planned_end), of.cache.block_size,
                 plan[layer][kv_head]);
    out.any_subset = unsure[layer][kv_head];
    ++tally->plans;
    tally->unsure += out.any_subset ? 1 : 0;
    return out;
  }
  // Without its end the prompt has said nothing.
  void truncated(const Track& track) override {
    if (track.size() < planned_end) plan.clear();
  }
};

struct Dynamic : Follower {
  Case of;
  uint32_t last_queries, n_keys;
  Combine combine;
  bool shared;
  std::vector<Vectors> votes;  // [layer][q_head][token]
  uint32_t voted_blocks = 0;   // what was full at a prompt's end; the others: n times their mean
  Dynamic(const Case& c, uint32_t w, uint32_t n, Combine how, bool one_for_all)
      : of(c), last_queries(w), n_keys(n), combine(how), shared(one_for_all) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Dynamic>(*this); }

  void prompted(const Track& track) override { vote(track, importance(track, last_queries)); }
  void vote(const Track& track, std::vector<Vectors> all_votes) {
    votes = std::move(all_votes);
    voted_blocks = track.size() / of.cache.block_size;
  }
  uint64_t budget() const { return of.budget_tokens / of.cache.block_size; }
  // More candidates than the budget holds.
  Choice choose(const Track& track, uint32_t layer, uint32_t kv_head,
                const Indices& candidates) const {
    const uint32_t b = of.cache.block_size;
    const Vectors queries = track.queries(layer, track.size() - 1);
    const auto score = [&](uint32_t h, uint32_t block) {
      const Vectors& k = track.k(layer, of.shape.heads.kv_head(h));
      const Vectors keys(k.begin() + block * b, k.begin() + (block + 1) * b);
      if (block >= voted_blocks)
        return dot(queries[h], representative::mean(keys)) *
               (combine == Combine::kSum ? n_keys : 1);
      const Vector& vote = votes[layer][h];
      const Vector mass(vote.begin() + block * b, vote.begin() + (block + 1) * b);
      return representative::combined(queries[h], representative::dynamic(keys, mass, n_keys),
                                      combine);
    };
    return block_topk::choose(of.shape.heads, candidates, budget(), score, Reduce::kSum, shared,
                              track.scale())[shared ? 0 : kv_head];
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size(), b = of.cache.block_size;
    const Forced forced = forced_blocks(of.cache, n, track.prompt_end());
    const Indices candidates = candidate_blocks(of.cache, n, track.prompt_end());
    if (candidates.size() <= budget())
      return {forced, b, {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0}};
    return {forced, b, choose(track, layer, kv_head, candidates)};
  }
  // A block that was cut is filled while answering.
  void truncated(const Track& track) override {
    voted_blocks = std::min(voted_blocks, track.size() / of.cache.block_size);
  }
};

inline Case long_window_case(uint32_t index) {
  Case of = make_case(index, {});
  of.budget_tokens += of.cache.block_size;
  return of;
}

}  // namespace kvasir::oracle::ktransformers
