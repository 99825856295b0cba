// Block selection by representatives in the runtime against its oracle: Quest and its kin.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/block_topk.h"

#include "tests/oracles/harness/duel.h"
#include "tests/oracles/representative.h"

namespace {

using namespace kvasir::oracle;
using representative::Combine;

struct Variant {
  const char* plugin;
  std::string options;
  std::function<double(const Vector& q, const Vectors& block)> score;
};

std::vector<Variant> variants() {
  return {
      {"minmax", "", [](const Vector& q, const Vectors& k) { return representative::bound(q, k); }},
      {"minmax", "box_scale = 0.3\n",
       [](const Vector& q, const Vectors& k) { return representative::shrunk_bound(q, k, 0.3); }},
      {"mean", "",
       [](const Vector& q, const Vectors& k) { return dot(q, representative::mean(k)); }},
      {"max", "",
       [](const Vector& q, const Vectors& k) { return dot(q, representative::highest(k)); }},
      {"fixed", "representative_num = 3\ncombine = 'sum'\n",
       [](const Vector& q, const Vectors& k) {
         return representative::combined(q, representative::fixed(k, 3), Combine::kSum);
       }},
      {"fixed", "representative_num = 4\ncombine = 'max'\n",
       [](const Vector& q, const Vectors& k) {
         return representative::combined(q, representative::fixed(k, 4), Combine::kMax);
       }},
  };
}

struct Blocks : Follower {
  Case of;
  Variant variant;
  Reduce rule;
  bool shared;
  uint32_t dense_layers = 0;      // the first so many
  std::vector<Choice> choices{};  // of all heads, made when the first one is asked for
  Blocks(const Case& c, Variant v, Reduce r, bool s)
      : of(c), variant(std::move(v)), rule(r), shared(s) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Blocks>(*this); }

  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size(), b = of.cache.block_size;
    const Forced forced = forced_blocks(of.cache, n, track.prompt_end());
    const Indices candidates = candidate_blocks(of.cache, n, track.prompt_end());
    const uint64_t budget = of.budget_tokens / b;
    if (layer < dense_layers || candidates.size() <= budget)
      return {forced, b, {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0}};
    if (kv_head > 0) return {forced, b, choices[shared ? 0 : kv_head]};
    const Vectors queries = track.queries(layer, n - 1);
    const auto score = [&](uint32_t h, uint32_t block) {
      const Vectors& k = track.k(layer, of.shape.heads.kv_head(h));
      return variant.score(queries[h], Vectors(k.begin() + block * b, k.begin() + (block + 1) * b));
    };
    choices =
        block_topk::choose(of.shape.heads, candidates, budget, score, rule, shared, track.scale());
    return {forced, b, choices[0]};
  }
};

TEST_CASE("the best blocks by their representatives are attended") {
  Report report;
  const std::vector<std::string> rules = {"sum", "mean", "max", "softmax_sum"};
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, {});
    Random random(i);
    of.budget_tokens += of.cache.block_size;  // at least one block
    const Variant variant = i % 2 ? variants()[0] : random.one_of(variants());
    const uint32_t rule = random.one_in(2) ? 0 : random.below(4);
    const bool shared = random.one_in(4);
    const Strategy strategy{"[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = " +
                                std::to_string(of.budget_tokens) +
                                "\n[representative]\nplugin = 'kvasir." + variant.plugin +
                                "'\ndtype = 'f32'\n" + variant.options,
                            "gqa_reduce = '" + rules[rule] + "'\nhead_select_mode = '" +
                                (shared ? "shared" : "separate") + "'\n",
                            1e-5};
    duel(of, strategy, std::make_unique<Blocks>(of, variant, static_cast<Reduce>(rule), shared),
         report);
  }
  conclude(report, "block_topk");
}

TEST_CASE(
    "Quest's own setting: pages of 16, two dense layers, no more forced than the current page") {
  Report report;
  const std::vector<std::string> rules = {"sum", "mean", "max", "softmax_sum"};
  for (uint32_t i = 0; i < case_count(); ++i) {
    CaseOptions options;
    options.n_layers = 4;
    Case of = make_case(i, options);
    of.cache.block_size = 16;
    of.cache.window_tokens = i % 2 ? 1 : 16;  // the preset's also reaches into the page before
    of.cache.sink_tokens = 0;
    of.budget_tokens += 16;
    const uint32_t rule = i / 3 % 4;  // with every size of group
    auto quest =
        std::make_unique<Blocks>(of, variants()[0], static_cast<Reduce>(rule), /*shared=*/false);
    quest->dense_layers = 2;
    duel(of,
         {"[selector]\nplugin = 'kvasir.block_topk'\ntoken_budget = " +
              std::to_string(of.budget_tokens) +
              "\n[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n",
          "dense_layers = [0, 1]\ngqa_reduce = '" + rules[rule] + "'\n", 1e-5},
         std::move(quest), report);
  }
  conclude(report, "quest", {.block_sizes = {16}});
}

}  // namespace
