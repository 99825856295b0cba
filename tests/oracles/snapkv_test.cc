// SnapKV and PyramidKV in the runtime against their oracle: what is left after the prompt.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/snapkv.h"

#include <functional>

#include "tests/oracles/harness/survivors.h"
#include "tests/oracles/pyramidkv.h"

namespace {

using namespace kvasir::oracle;

// How many tokens a layer keeps of so many before the window.
using Budget = std::function<uint64_t(uint32_t layer, uint32_t n_candidates)>;

// The choice is made when the prompt is done; what comes later is attended too.
struct Keeper : Follower {
  Case of;
  snapkv::Options options;
  Budget budget;
  bool drop;                                 // else masked until the next prompt
  std::vector<std::vector<Survivors>> kept;  // [layer][kv_head]
  uint32_t planned_end = 0;                  // cut before here, what was masked is there again
  Keeper(const Case& c, snapkv::Options o, Budget b, bool evicts)
      : of(c), options(o), budget(std::move(b)), drop(evicts) {
    kept.assign(of.shape.n_layers, std::vector<Survivors>(of.shape.heads.n_kv_heads));
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Keeper>(*this); }

  void prompted(const Track& track) override {
    const uint32_t n = track.size(), n_new = n - track.prompt_begin();
    const Heads& heads = of.shape.heads;
    const Forced forced = forced_tokens(of.cache, n, n);
    planned_end = n;
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) {
      std::vector<Indices> alive(heads.n_kv_heads);
      for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
        if (!drop) kept[layer][g] = {};
        alive[g] = kept[layer][g].tokens(n);
      }
      Vectors votes;
      for (uint32_t h = 0; h < heads.n_q_heads; ++h) {
        const uint32_t g = heads.kv_head(h);
        Vectors q;
        for (uint32_t pos = n - std::min(n_new, options.window); pos < n; ++pos)
          q.push_back(track.q(layer, h, pos));
        votes.push_back(
            snapkv::vote(q, track.k(layer, g), track.scale(), without(range(0, n), alive[g])));
        votes.back().resize(forced.window_begin);
      }
      for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
        const Indices candidates =
            without(alive[g], without(range(0, n), candidate_tokens(of.cache, n, n)));
        const uint64_t places = budget(layer, static_cast<uint32_t>(candidates.size()));
        kept[layer][g].plan(forced, snapkv::choose(heads, options, votes, g, candidates, places));
      }
    }
  }
  Indices expect_prefill(const Track&, uint32_t layer, uint32_t g, uint32_t, uint32_t to) override {
    return drop ? kept[layer][g].tokens(to) : range(0, to);
  }
  Expected expect(const Track&, uint32_t layer, uint32_t g) override {
    return kept[layer][g].expected();
  }
  void attended(const Track&, uint32_t layer, const Attended& in_fact) override {
    for (size_t g = 0; g < kept[layer].size(); ++g) kept[layer][g].settle(in_fact.tokens[g]);
  }
  Cut cut(const Track& track, uint32_t n) const override {
    if (!drop) return Cut::kPossible;
    return cut_of_dropped(kept, n,
                          forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin);
  }
  void truncated(const Track& track) override {
    for (auto& layer : kept)
      for (Survivors& head : layer) {
        head.truncate(track.size());
        if (!drop && track.size() < planned_end) head = {};
      }
    planned_end = std::min(planned_end, track.size());
  }
};

Case window_case(uint32_t index, uint32_t n_layers) {
  CaseOptions options;
  options.n_layers = n_layers;
  Case of = make_case(index, options);
  of.cache.window_from_prompt = true;
  of.cache.window_tokens = std::max(of.cache.window_tokens, 1u);
  return of;
}

snapkv::Options random_options(const Case& of, Random& random) {
  snapkv::Options out;
  out.window = of.cache.window_tokens;
  out.kernel = random.one_of(std::vector<uint32_t>{1, 3, 5, 7});
  out.pooling = random.one_in(2) ? snapkv::Pooling::kMax : snapkv::Pooling::kMean;
  out.group = random.one_of(std::vector<Reduce>{Reduce::kSum, Reduce::kMean, Reduce::kMax});
  out.pool_first = random.one_in(3);
  return out;
}
std::string tables(const char* plugin, const snapkv::Options& options, const std::string& budget,
                   bool drop) {
  return "[selector]\nplugin = 'kvasir." + std::string(plugin) + "'\n" + budget +
         "\nkernel_size = " + std::to_string(options.kernel) + "\npooling = '" +
         (options.pooling == snapkv::Pooling::kMax ? "maxpool" : "avgpool") + "'\n" +
         "pool_first = " + (options.pool_first ? "true" : "false") + "\nmode = '" +
         (drop ? "evict" : "retrieve") + "'\n";
}
std::string cache_keys(const snapkv::Options& options) {
  const char* names[] = {"sum", "mean", "max"};
  return std::string("gqa_reduce = '") + names[static_cast<size_t>(options.group)] + "'\n";
}

TEST_CASE("SnapKV keeps what the last queries of the prompt vote for") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const Case of = window_case(i, 2);
    Random random(i);
    const snapkv::Options options = random_options(of, random);
    // The published capacity counts the window.
    const bool capacity = of.cache.sink_tokens == 0 && random.one_in(2);
    const std::string budget =
        capacity ? "max_capacity_prompt = " + std::to_string(of.budget_tokens + options.window)
                 : "budget_tokens = " + std::to_string(of.budget_tokens);
    const bool drop = !random.one_in(3);
    const auto places = [n = of.budget_tokens](uint32_t, uint32_t) -> uint64_t { return n; };
    duel(of, {tables("snapkv", options, budget, drop), cache_keys(options), 1e-5},
         std::make_unique<Keeper>(of, options, places, drop), report);
  }
  conclude(report, "snapkv");
}

TEST_CASE("PyramidKV keeps more in the first layers than in the last") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const uint32_t n_layers = i % 7 == 5 ? 2 : 2 + i % 3;
    Case of = window_case(i, n_layers);
    of.cache.sink_tokens = 0;
    Random random(i);
    const snapkv::Options options = random_options(of, random);
    const uint32_t beta = 2 + random.below(20);
    const uint32_t capacity = of.budget_tokens + options.window;
    const bool drop = !random.one_in(3);
    // The tokens before the window and the window: the whole prompt, if it is the first.
    const auto places = [=](uint32_t layer, uint32_t n_candidates) -> uint64_t {
      return pyramidkv::budgets(n_layers, capacity, options.window, n_candidates + options.window,
                                beta)[layer];
    };
    duel(of,
         {tables("pyramidkv", options,
                 "max_capacity_prompt = " + std::to_string(capacity) +
                     "\nbeta = " + std::to_string(beta),
                 drop),
          cache_keys(options), 1e-5},
         std::make_unique<Keeper>(of, options, places, drop), report);
  }
  conclude(report, "pyramidkv");
}

}  // namespace
