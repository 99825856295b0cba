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
  uint32_t recent;  // the window's tokens among them
  bool normalised;
  bool once;                                        // after the prompt only
  std::vector<std::vector<h2o::Accumulator>> mass;  // [layer][kv_head]
  std::vector<std::vector<Indices>> alive;
  HeavyHitters(const Case& c, uint64_t hh_size, uint32_t recent_size, bool per_query, bool at_end)
      : of(c), heavy(hh_size), recent(recent_size), normalised(per_query), once(at_end) {
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
  // The plan was made one token ago, or when the prompt was done.
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = once ? track.prompt_end() : track.size() - 1;
    const Indices sinks = range(0, std::min(of.cache.sink_tokens, n));
    Choice keep = h2o::keep(mass[layer][kv_head], without(alive[layer][kv_head], sinks), n, recent,
                            heavy, normalised);
    return {{static_cast<uint32_t>(sinks.size()), n - std::min(n, recent)}, 1, keep};
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
      alive[layer][g] = in_fact.tokens[g];
      if (!once) add(track, layer, g, track.size() - 1, alive[layer][g]);
    }
  }
};

TEST_CASE("H2O keeps heavy hitters and recent tokens") {
  Report report;
  CaseOptions options;
  options.second_prompts = options.truncates = false;
  for (uint32_t i = 0; i < case_count(); ++i) {
    // The oracle, too, sums over all pairs of tokens.
    options.longest = i == 12 && case_count() > 100 ? 4097 : 600;
    options.shortest = options.longest == 4097 ? 4097 : 0;
    Case of = make_case(i, options);
    Random random(i);
    const bool normalised = random.one_in(3), drop = !random.one_in(4), once = random.one_in(4);
    const uint32_t recent = of.cache.window_tokens + random.below(40);
    std::string budget;
    uint32_t heavy = of.budget_tokens, last = std::max(recent, 1u);
    if (of.context > 0 && random.one_in(3)) {
      const double ratio = (5 + random.below(40)) / 100.0;  // as the text below is read
      heavy = h2o::ratio_budget(ratio, of.context);
      last = std::max(h2o::ratio_budget(ratio, of.context), 1u);
      of.cache.window_tokens = 1;
      budget =
          "heavy_ratio = " + std::to_string(ratio) + "\nrecent_ratio = " + std::to_string(ratio);
    } else {
      budget = "hh_size = " + std::to_string(heavy) + "\nrecent_size = " + std::to_string(last);
    }
    const std::string tables = "[selector]\nplugin = 'kvasir.h2o'\n" + budget + "\nmode = '" +
                               (drop ? "drop" : "mask") +
                               "'\nnormalize = " + (normalised ? "true" : "false") +
                               "\nevict_at = '" + (once ? "prompt_end" : "step") + "'\n";
    duel(of, {tables, "gqa_reduce = 'mean'\n", 1e-5},
         std::make_unique<HeavyHitters>(of, heavy, last, normalised, once), report);
  }
  conclude(report, "h2o");
}

}  // namespace
