// TOVA in the runtime against its oracle: the last query's attention decides what stays.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/h2o.h"
#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

struct LastQuery : Follower {
  Case of;
  std::vector<Choice> plan;    // [layer], made at the end of the last step
  std::vector<Indices> alive;  // [layer], the same for all heads
  explicit LastQuery(const Case& c) : of(c), plan(c.shape.n_layers), alive(c.shape.n_layers) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<LastQuery>(*this); }

  void make_plan(const Track& track, uint32_t layer) {
    const uint32_t n = track.size();
    const Indices range_now = candidate_tokens(of.cache, n, track.prompt_end());
    Indices candidates;
    for (const uint32_t t : alive[layer])
      if (holds(range_now, t)) candidates.push_back(t);
    Rows p;
    for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h) {
      const Vector all = track.probability(layer, h, n - 1, alive[layer]);
      p.emplace_back();
      for (size_t i = 0; i < all.size(); ++i)
        if (holds(candidates, alive[layer][i])) p.back().push_back(all[i]);
    }
    plan[layer] = tova::keep(candidates, p, of.budget_tokens);
  }
  void prompted(const Track& track) override {
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) {
      alive[layer] = range(0, track.size());
      make_plan(track, layer);
    }
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t) override {
    return {forced_tokens(of.cache, track.size() - 1, track.prompt_end()), 1, plan[layer]};
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (const Indices& tokens : in_fact.tokens) CHECK(tokens == in_fact.tokens[0]);
    alive[layer] = in_fact.tokens[0];
    make_plan(track, layer);
  }
};

TEST_CASE("TOVA keeps what the last query attended to") {
  Report report;
  CaseOptions options;
  options.second_prompts = options.truncates = false;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const Case of = make_case(i, options);
    const std::string tables =
        "[selector]\nplugin = 'kvasir.tova'\nbudget_tokens = " + std::to_string(of.budget_tokens) +
        "\n";
    duel(of, {tables, "", 1e-5}, std::make_unique<LastQuery>(of), report);
  }
  conclude(report, "tova");
}

}  // namespace
