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

Case window_case(uint32_t index) {
  CaseOptions options;
  options.second_prompts = options.truncates_into_prompt = false;
  Case of = make_case(index, options);
  of.cache.window_from_prompt = true;
  of.cache.window_tokens = std::max(of.cache.window_tokens, 1u);
  return of;
}

TEST_CASE("SnapKV keeps what the last queries of the prompt vote for") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = window_case(i);
    Random random(i);
    snapkv::Options options;
    options.window = of.cache.window_tokens;
    options.kernel = random.one_of(std::vector<uint32_t>{1, 3, 5, 7});
    options.pooling = random.one_in(2) ? snapkv::Pooling::kMax : snapkv::Pooling::kMean;
    const std::string tables =
        "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = " +
        std::to_string(of.budget_tokens) + "\nwindow_size = " + std::to_string(options.window) +
        "\nkernel_size = " + std::to_string(options.kernel) + "\npooling = '" +
        (options.pooling == snapkv::Pooling::kMax ? "maxpool" : "avgpool") + "'\n";
    duel(of, {tables, "", 1e-5},
         std::make_unique<Keeper>(of, options,
                                  std::vector<uint64_t>(of.shape.n_layers, of.budget_tokens)),
         report);
  }
  conclude(report, "snapkv");
}

}  // namespace
