// TOVA: the latest query alone decides, for all heads alike.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/eviction_scene.h"
#include "tests/support/readme.h"

namespace {
using namespace kvasir::test;

TEST_SUITE("plugins/selector/tova") {
  TEST_CASE("what the latest query attends to most stays; earlier queries are forgotten") {
    constexpr uint32_t kSink = 2, kWindow = 3, kBudget = 9;
    EvictionScene scene("tova", {{"budget_tokens", int64_t{kBudget}}},
                        eviction_geometry(kSink, kWindow), 2);
    CHECK(scene.limits.scope == KVASIR_SCOPE_SEQUENCE);
    CHECK(scene.limits.mass.reduce == KVASIR_MASS_SUM_ALL);
    CHECK(scene.limits.mass.last_queries == 1);
    CHECK(scene.limits.max_units == kBudget);
    scene.prompt(0, 40);
    Tokens alive = range(0, 40);
    for (uint32_t i = 0; i < 40; ++i) {
      const When when = i == 0 ? kPromptStepEnd : kDecodeStepEnd;
      const uint32_t n = scene.seq.kv_len;
      const auto mass = random_mass(1, alive.size(), i);
      REQUIRE(scene.observe(0, mass, {alive}, i == 0 ? kPromptAttended : kDecodeAttended) ==
              KVASIR_OK);
      std::vector<double> weight(n);
      Tokens candidates, kept;
      for (size_t j = 0; j < alive.size(); ++j) {
        weight[alive[j]] = double{mass[0][j]};
        const bool forced = alive[j] < kSink || alive[j] + kWindow >= n;
        (forced ? kept : candidates).push_back(alive[j]);
      }
      const Tokens best = best_of(weight, candidates, kBudget);
      CHECK(scene.plan(0, when, {candidates}) == std::vector<Tokens>{best});
      CHECK(scene.n_listed == (i == 0 ? kBudget : candidates.size() - kBudget));
      kept.insert(kept.end(), best.begin(), best.end());
      std::sort(kept.begin(), kept.end());
      alive = kept;
      scene.decoded();
      alive.push_back(n);
    }
    CHECK(alive.size() == kSink + kBudget + kWindow + 1);
  }

  TEST_CASE("layers do not mix, and a step that was not observed has no plan") {
    EvictionScene scene("tova", {{"budget_tokens", int64_t{1}}}, eviction_geometry(0, 1));
    scene.prompt(0, 4);
    REQUIRE(scene.observe(0, {{9, 2, 3, 0}}) == KVASIR_OK);  // no plan followed
    REQUIRE(scene.observe(0, {{1, 2, 3, 0}}) == KVASIR_OK);
    REQUIRE(scene.observe(1, {{3, 2, 1, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0)[0] == Tokens{2});
    CHECK(scene.plan(1)[0] == Tokens{0});
    scene.plan(1);
    CHECK(scene.status == KVASIR_ERR_INVALID);
  }

  TEST_CASE("a query takes 8 bytes per token it saw until the plan, then nothing") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kN = 1u << 20;
    EvictionScene scene("tova", {{"budget_tokens", int64_t{8}}}, eviction_geometry(0, 1));
    scene.prompt(0, kN);
    const auto mass = random_mass(1, kN, 1);
    const size_t before = heap_bytes();
    REQUIRE(scene.observe(0, mass) == KVASIR_OK);
    const size_t query = heap_bytes() - before;
    CHECK(query >= 8 * kN);
    CHECK(query < 8 * kN * 1.01);
    CHECK(scene.plan(0)[0].size() == 8);
    CHECK(heap_bytes() < before + kN / 100);
    check_claim("selector/tova", "8 bytes per attended token and layer; between steps 0 bytes");
  }

  TEST_CASE("the paper's size counts sink, window and the current token") {
    const OptionValues capped{{"cache_size", int64_t{64}}};
    CHECK(EvictionScene("tova", capped, eviction_geometry(4, 10)).limits.max_units == 50);
    CHECK(EvictionScene("tova", capped, eviction_geometry(0, 0)).limits.max_units == 63);
    FakeHost host;
    PluginInstance<kvasir_selector> selector(host, "tova", capped);
    const kvasir_geometry geometry = eviction_geometry(32, 33);
    CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) ==
          KVASIR_ERR_INVALID);
  }

  TEST_CASE("once after the prompt, when asked") {
    const EvictionScene scene("tova", {{"evict_at", std::string("prompt_end")}},
                              eviction_geometry(0, 1));
    CHECK(scene.limits.plans.at == KVASIR_PLAN_AT_PROMPT_END);
    CHECK(scene.limits.mass.at == KVASIR_MASS_AT_PREFILL);
  }
}

}  // namespace
