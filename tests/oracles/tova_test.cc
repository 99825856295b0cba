// TOVA in the runtime against its oracle: the last query's attention decides what stays.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/h2o.h"
#include "tests/oracles/harness/survivors.h"

namespace {

using namespace kvasir::oracle;

struct LastQuery : Follower {
  Case of;
  bool once;                                 // after the prompt only
  std::vector<std::vector<Survivors>> kept;  // [layer][0], the same for all heads
  LastQuery(const Case& c, bool at_prompt_end)
      : of(c), once(at_prompt_end), kept(c.shape.n_layers, std::vector<Survivors>(1)) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<LastQuery>(*this); }

  // Made at the end of a prompt or step.
  void plan(const Track& track, uint32_t layer) {
    const uint32_t n = track.size();
    const Indices alive = kept[layer][0].tokens(n);
    const Indices range_now = candidate_tokens(of.cache, n, track.prompt_end());
    Indices candidates;
    for (const uint32_t t : alive)
      if (holds(range_now, t)) candidates.push_back(t);
    Vectors p;
    for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h) {
      const Vector all = track.probability(layer, h, n - 1, alive);
      p.emplace_back();
      for (size_t i = 0; i < all.size(); ++i)
        if (holds(candidates, alive[i])) p.back().push_back(all[i]);
    }
    kept[layer][0].plan(forced_tokens(of.cache, n, track.prompt_end()),
                        tova::keep(candidates, p, of.budget_tokens));
  }
  void prompted(const Track& track) override {
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) plan(track, layer);
  }
  Indices expect_prefill(const Track&, uint32_t layer, uint32_t, uint32_t, uint32_t to) override {
    return kept[layer][0].tokens(to);
  }
  Expected expect(const Track&, uint32_t layer, uint32_t) override {
    return kept[layer][0].expected();
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (const Indices& tokens : in_fact.tokens) CHECK(tokens == in_fact.tokens[0]);
    kept[layer][0].settle(in_fact.tokens[0]);
    if (!once) plan(track, layer);
  }
  Cut cut(const Track& track, uint32_t n) const override {
    return cut_of_dropped(kept, n,
                          forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin);
  }
  void truncated(const Track& track) override {
    for (auto& layer : kept) layer[0].truncate(track.size());
  }
};

TEST_CASE("TOVA keeps what the last query attended to") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const Case of = make_case(i, {});
    const bool once = i % 5 == 4, capped = i % 3 == 1;
    // The authors' cap holds sink, window and the current token as well.
    const uint32_t forced = of.cache.sink_tokens + std::max(of.cache.window_tokens, 1u);
    const std::string budget = capped ? "cache_size = " + std::to_string(of.budget_tokens + forced)
                                      : "budget_tokens = " + std::to_string(of.budget_tokens);
    const std::string tables = "[selector]\nplugin = 'kvasir.tova'\n" + budget + "\nevict_at = '" +
                               (once ? "prompt_end" : "step") + "'\n";
    const std::vector<std::string> met = {capped ? "cache_size" : "budget_tokens",
                                          once ? "once" : "every step"};
    duel(of, {tables, "", 1e-5, {}, met}, std::make_unique<LastQuery>(of, once), report);
  }
  conclude(report, "tova", {.options = {"cache_size", "budget_tokens", "once", "every step"}});
}

}  // namespace
