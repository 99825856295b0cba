// InfiniGen in the runtime against its oracle: tokens near the largest rehearsed logit.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/infinigen.h"

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

struct Rehearsed : Follower {
  Case of;
  double alpha, ratio, slack;
  Reduce group;
  // [layer][kv_head]: sums over the queries of all prompts, and the columns.
  std::vector<Rows> sum;
  std::vector<std::vector<Indices>> columns;
  Rehearsed(const Case& c, double a, double r, double s, Reduce g)
      : of(c), alpha(a), ratio(r), slack(s), group(g) {
    start();
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Rehearsed>(*this); }

  uint64_t n_columns() const { return infinigen::column_count(ratio, of.shape.heads.head_dim); }
  // Until a prompt is read, the first columns count.
  void start() {
    const Heads& heads = of.shape.heads;
    sum.assign(of.shape.n_layers, Rows(heads.n_kv_heads, Vector(heads.head_dim, 0.0)));
    columns.assign(
        of.shape.n_layers,
        std::vector<Indices>(heads.n_kv_heads, range(0, static_cast<uint32_t>(n_columns()))));
  }
  void prompted(const Track& track) override {
    const Heads& heads = of.shape.heads;
    for (uint32_t layer = 1; layer < of.shape.n_layers; ++layer)  // layer 0 is dense
      for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
        Rows q;
        for (uint32_t h = g * heads.group(); h < (g + 1) * heads.group(); ++h)
          for (uint32_t pos = track.prompt_begin(); pos < track.size(); ++pos)
            q.push_back(track.q(layer, h, pos));
        Vector& total = sum[layer][g];
        total = reduce({total, infinigen::magnitude(q, {})}, Reduce::kSum);
        columns[layer][g] = infinigen::largest(total, n_columns()).chosen();
      }
  }
  // Sums keep what the forgotten queries added, and the columns stay: unless nothing is left.
  void truncated(const Track& track) override {
    if (track.size() == 0) start();
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const Heads& heads = of.shape.heads;
    const uint32_t n = track.size();
    const Forced forced = forced_tokens(of.cache, n, track.prompt_end());
    const Indices candidates = candidate_tokens(of.cache, n, track.prompt_end());
    if (layer == 0 || candidates.size() <= of.budget_tokens)  // dense; the cap covers everything
      return {forced, 1, {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0}};
    infinigen::Rehearsal rehearsal;
    rehearsal.alpha = alpha;
    rehearsal.cap = of.budget_tokens;
    double high = 0;
    for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
      Rows members;
      for (uint32_t h = g * heads.group(); h < (g + 1) * heads.group(); ++h) {
        const Vector q = track.q(layer, h, n - 1);
        members.emplace_back();
        for (const uint32_t t : candidates)
          members.back().push_back(infinigen::partial_logit(q, track.k(layer, g)[t], {},
                                                            columns[layer][g], track.scale()));
      }
      rehearsal.logit.push_back(reduce(members, group));
      for (const double s : rehearsal.logit.back()) high = std::max(high, std::abs(s));
    }
    Expected out(
        forced, 1,
        infinigen::choose(rehearsal, candidates, kv_head, infinigen::common_count(rehearsal)));
    std::tie(out.n_low, out.n_high) = infinigen::count_bounds(rehearsal, slack * high);
    return out;
  }
  void attended(const Track&, uint32_t, const Attended& in_fact) override {
    for (const Indices& units : in_fact.units) CHECK(units.size() == in_fact.units[0].size());
  }
};

TEST_CASE("InfiniGen fetches one common count of the best rehearsed tokens") {
  Report report;
  CaseOptions options;
  options.n_layers = 3;
  const std::vector<std::string> rules = {"sum", "mean", "max"};
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, options);
    Random random(i);
    // Partial keys are stored in 16 bits: exact only for short numbers that RoPE leaves alone.
    if (random.one_in(2)) of.shape.rope = false;
    of.shape.short_keys = !of.shape.rope;
    const double tolerance = of.shape.rope ? 2e-3 : 1e-5;
    const double alpha = 1.0 + 0.5 * random.below(9);
    const double ratio = random.one_in(3) ? 1.0 : 0.2 + 0.1 * random.below(5);
    const uint32_t rule = random.below(3);
    const uint32_t ahead = random.one_in(3) ? 0 : 1;
    const std::string tables =
        "[selector]\nplugin = 'kvasir.infinigen'\nbudget_tokens = " +
        std::to_string(of.budget_tokens) + "\nalpha = " + std::to_string(alpha) +
        "\npartial_weight_ratio = " + std::to_string(ratio) + "\ngqa_reduce = '" + rules[rule] +
        "'\nspeculate_ahead = " + std::to_string(ahead) + "\n";
    duel(of, {tables, "dense_layers = [0]\n", tolerance},
         std::make_unique<Rehearsed>(of, alpha, ratio, tolerance, static_cast<Reduce>(rule)),
         report);
  }
  conclude(report, "infinigen");
}

}  // namespace
