// H2O in the runtime against its oracle: accumulated attention decides what stays.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/h2o.h"

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

// Follows the kept set: after the prompt and after each step the heavy ones among the tokens older
// than the window stay.
struct HeavyHitters : Follower {
  Case of;
  uint64_t heavy;
  bool normalised;
  std::vector<std::vector<h2o::Accumulator>> mass;  // [layer][kv_head]
  std::vector<std::vector<Indices>> alive;
  HeavyHitters(const Case& c, uint64_t n, bool per_query) : of(c), heavy(n), normalised(per_query) {
    mass.assign(of.shape.n_layers, std::vector<h2o::Accumulator>(of.shape.heads.n_kv_heads));
    alive.assign(of.shape.n_layers, std::vector<Indices>(of.shape.heads.n_kv_heads));
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<HeavyHitters>(*this); }

  void add(const Track& track, uint32_t layer, uint32_t g, uint32_t pos, const Indices& seen) {
    Rows p;
    for (uint32_t h = g * of.shape.heads.group(); h < (g + 1) * of.shape.heads.group(); ++h)
      p.push_back(track.probability(layer, h, pos, seen));
    mass[layer][g].add(pos, seen, p);
  }
  void prompted(const Track& track) override {
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
        for (uint32_t pos = track.prompt_begin(); pos < track.size(); ++pos)
          add(track, layer, g, pos, range(0, pos + 1));
        alive[layer][g] = range(0, track.size());
      }
  }
  // The plan was made one token ago.
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size() - 1;
    const Forced forced = forced_tokens(of.cache, n, track.prompt_end());
    const Indices sinks = range(0, forced.sink_end);
    Choice keep = h2o::keep(mass[layer][kv_head], without(alive[layer][kv_head], sinks), n,
                            n - forced.window_begin, heavy, normalised);
    return {forced, 1, keep};
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
      alive[layer][g] = in_fact.tokens[g];
      add(track, layer, g, track.size() - 1, alive[layer][g]);
    }
  }
};

TEST_CASE("H2O keeps heavy hitters and recent tokens") {
  Report report;
  CaseOptions options;
  options.second_prompts = options.truncates = false;
  for (uint32_t i = 0; i < case_count(); ++i) {
    options.longest = i == 9 ? 4097 : 700;  // the oracle, too, sums over all pairs
    options.shortest = i == 9 ? 4097 : 0;
    Case of = make_case(i, options);
    Random random(i);
    const bool normalised = random.one_in(3);
    const std::string tables =
        "[selector]\nplugin = 'kvasir.h2o'\nbudget_tokens = " + std::to_string(of.budget_tokens) +
        (normalised ? "\nnormalised = true\n" : "\n");
    duel(of, {tables, "", 1e-5}, std::make_unique<HeavyHitters>(of, of.budget_tokens, normalised),
         report);
  }
  conclude(report, "h2o");
}

}  // namespace
