// SnapKV and PyramidKV in the runtime against their oracle: what is left after the prompt.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/snapkv.h"

#include "tests/oracles/harness/duel.h"
#include "tests/oracles/pyramidkv.h"

namespace {

using namespace kvasir::oracle;

// The choice is made when the prompt is done; what comes later is attended too.
struct Keeper : Follower {
  Case of;
  snapkv::Options options;
  std::vector<uint64_t> budget;           // [layer]
  std::vector<std::vector<Choice>> plan;  // [layer][kv_head]
  Keeper(const Case& c, snapkv::Options o, std::vector<uint64_t> b)
      : of(c), options(o), budget(std::move(b)) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Keeper>(*this); }

  void prompted(const Track& track) override {
    const uint32_t n = track.size();
    const Forced forced = forced_tokens(of.cache, n, n);
    plan.assign(of.shape.n_layers, {});
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) {
      Rows votes;
      for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h) {
        Rows q;
        for (uint32_t pos = n - std::min(n, options.window); pos < n; ++pos)
          q.push_back(track.q(layer, h, pos));
        votes.push_back(snapkv::vote(q, track.k(layer, of.shape.heads.kv_head(h)), track.scale()));
        votes.back().resize(forced.window_begin);
      }
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g)
        plan[layer].push_back(snapkv::choose(of.shape.heads, options, votes, g,
                                             candidate_tokens(of.cache, n, n), budget[layer]));
    }
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    if (plan.empty())  // no prompt: nothing was chosen
      return {{0, 0}, 1, {}};
    return {forced_tokens(of.cache, track.prompt_end(), track.prompt_end()), 1,
            plan[layer][kv_head]};
  }
  void attended(const Track&, uint32_t layer, const Attended& in_fact) override {
    for (size_t g = 0; layer < plan.size() && g < plan[layer].size(); ++g) {
      const Indices& units = in_fact.units[g];
      plan[layer][g] = {units, Vector(units.size(), 1.0), units.size(), 0};
    }
  }
};

Case window_case(uint32_t index, uint32_t longest) {
  CaseOptions options;
  options.longest = longest;
  options.second_prompts = options.truncates_into_prompt = false;
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
std::string tables(const char* plugin, const snapkv::Options& options, const std::string& budget) {
  return "[selector]\nplugin = 'kvasir." + std::string(plugin) + "'\n" + budget +
         "\nkernel_size = " + std::to_string(options.kernel) + "\npooling = '" +
         (options.pooling == snapkv::Pooling::kMax ? "maxpool" : "avgpool") + "'\n" +
         "pool_first = " + (options.pool_first ? "true" : "false") + "\n";
}
std::string cache_keys(const snapkv::Options& options) {
  const char* names[] = {"sum", "mean", "max"};
  return std::string("gqa_reduce = '") + names[static_cast<size_t>(options.group)] + "'\n";
}

TEST_CASE("SnapKV keeps what the last queries of the prompt vote for") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = window_case(i, 4097);
    Random random(i);
    const snapkv::Options options = random_options(of, random);
    // The published capacity counts the window.
    const bool capacity = of.cache.sink_tokens == 0 && random.one_in(2);
    const std::string budget =
        capacity ? "max_capacity_prompt = " + std::to_string(of.budget_tokens + options.window)
                 : "budget_tokens = " + std::to_string(of.budget_tokens);
    duel(of, {tables("snapkv", options, budget), cache_keys(options), 1e-5},
         std::make_unique<Keeper>(of, options,
                                  std::vector<uint64_t>(of.shape.n_layers, of.budget_tokens)),
         report);
  }
  conclude(report, "snapkv");
}

TEST_CASE("PyramidKV keeps more in the first layers than in the last") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = window_case(i, 900);
    of.cache.sink_tokens = 0;
    of.shape.n_layers = 2 + i % 3;
    Random random(i);
    const snapkv::Options options = random_options(of, random);
    const uint32_t beta = 2 + random.below(20);
    const uint32_t capacity = of.budget_tokens + options.window;
    std::vector<uint64_t> budgets;
    for (const uint32_t n :
         pyramidkv::budgets(of.shape.n_layers, capacity, options.window, of.context, beta))
      budgets.push_back(n);
    duel(of,
         {tables("pyramidkv", options,
                 "max_capacity_prompt = " + std::to_string(capacity) +
                     "\nbeta = " + std::to_string(beta)),
          cache_keys(options), 1e-5},
         std::make_unique<Keeper>(of, options, budgets), report);
  }
  conclude(report, "pyramidkv");
}

}  // namespace
