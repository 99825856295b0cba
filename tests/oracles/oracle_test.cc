// The exact choice in the runtime against the definition: what receives most attention mass, by
// number and by share.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/exact.h"
#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

struct Exact : Follower {
  Case of;
  bool blocks, shared;
  double p;  // 0: budget_tokens
  Exact(const Case& c, bool by_block, bool one_for_all, double share)
      : of(c), blocks(by_block), shared(one_for_all), p(share) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Exact>(*this); }

  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size(), unit = blocks ? of.cache.block_size : 1;
    const Heads& heads = of.shape.heads;
    const Indices all = range(0, n);
    const Forced forced = blocks ? forced_blocks(of.cache, n, track.prompt_end())
                                 : forced_tokens(of.cache, n, track.prompt_end());
    const Indices candidates = blocks ? candidate_blocks(of.cache, n, track.prompt_end())
                                      : candidate_tokens(of.cache, n, track.prompt_end());
    const uint64_t budget = of.budget_tokens / unit;
    if (p == 0 && candidates.size() <= budget)
      return {forced, unit, {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0}};
    Vectors mass;
    for (uint32_t h = 0; h < heads.n_q_heads; ++h)
      if (shared || heads.kv_head(h) == kv_head)
        mass.push_back(track.probability(layer, h, n - 1, all));
    const Choice best = blocks ? exact::best_blocks(all, mass, candidates, unit, budget)
                               : exact::best_tokens(all, mass, candidates, budget);
    Expected out(forced, unit, best);
    if (p == 0) return out;
    // What is forced counts first; of the rest as few as reach the share.
    const double whole = static_cast<double>(mass.size());
    double attended = 0;
    for (const uint32_t t : with_forced(forced, {}, n))
      for (const Vector& head : mass) attended += head[t];
    constexpr double kSlack = 3e-6;  // single precision of logits
    const exact::TopP set =
        exact::smallest_set(candidates, best.score, p * whole - attended, kSlack * whole);
    out.choice.n = set.choice.n;
    out.n_low = set.lower;
    out.n_high = set.upper;
    return out;
  }
};

TEST_CASE("what receives most attention is attended") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, {});
    Random random(i);
    const bool blocks = random.one_in(2), shared = random.one_in(3);
    if (blocks) of.budget_tokens += of.cache.block_size;  // at least one
    const double p =
        i % 2 ? 0 : random.one_of(std::vector<double>{0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0});
    const std::string goal =
        p == 0 ? "budget_tokens = " + std::to_string(of.budget_tokens) : "p = " + std::to_string(p);
    const Strategy strategy{
        "[selector]\nplugin = 'kvasir.oracle'\n" + goal + "\nunit = '" +
            (blocks ? "block" : "token") + "'\n",
        std::string("head_select_mode = '") + (shared ? "shared" : "separate") + "'\n", 1e-5};
    duel(of, strategy, std::make_unique<Exact>(of, blocks, shared, p), report);
  }
  conclude(report, "oracle");
}

}  // namespace
