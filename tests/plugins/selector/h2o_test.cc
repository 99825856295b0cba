// H2O: sums of attention, who stays after the prompt and after every token, budgets of all kinds.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/selector/eviction_scene.h"
#include "tests/support/readme.h"
#include "tests/support/slab.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

constexpr uint32_t kMax = 160;  // tokens

struct Scene : EvictionScene {
  Scene(const OptionValues& options, const kvasir_geometry& geometry, uint32_t workers = 0)
      : EvictionScene("h2o", options, geometry, workers),
        pages(geometry, layout, kMax / geometry.block_size) {
    slab = pages.get();
  }
  Slab pages;
};

// Sums of one kv head restated: one double per token and query head that counts apart.
struct Head {
  std::vector<std::vector<double>> sum;
  Tokens alive;

  std::vector<double> weights(uint32_t kv_len, bool normalize) const {
    std::vector<double> out(kMax);
    for (uint32_t t = 0; t < kv_len; ++t) {
      for (const auto& sums : sum) out[t] = std::max(out[t], sums[t]);
      if (normalize) out[t] /= kv_len - t;
    }
    return out;
  }
};

kvasir_status validate(Selector& selector, const kvasir_geometry& geometry) {
  return selector->base.validate(selector.self(), &geometry, selector.err());
}

kvasir_sel_limits limits_of(const OptionValues& options, const kvasir_geometry& geometry) {
  EvictionScene scene("h2o", options, geometry);
  return scene.limits;
}

TEST_SUITE("plugins/selector/h2o") {
  TEST_CASE("what gathered most stays beside the last ones, after the prompt and every token") {
    constexpr uint32_t kSink = 2, kWindow = 8, kHeavy = 11, kRecent = 12, kPrompt = 70;
    for (const uint32_t reduce : {KVASIR_REDUCE_SUM, KVASIR_REDUCE_MAX}) {
      for (const bool normalize : {false, true}) {
        CAPTURE(reduce);
        CAPTURE(normalize);
        kvasir_geometry geometry = eviction_geometry(kSink, kWindow);
        geometry.gqa_reduce = reduce;
        Scene scene({{"hh_size", int64_t{kHeavy}},
                     {"recent_size", int64_t{kRecent}},
                     {"normalize", int64_t{normalize}}},
                    geometry, reduce == KVASIR_REDUCE_MAX ? 3 : 0);
        // Lists of mass per kv head: one per query head, or one of their sum.
        const uint32_t n_apart = reduce == KVASIR_REDUCE_MAX ? 2 : 1;
        std::vector<Head> heads(
            2, {std::vector<std::vector<double>>(n_apart, std::vector<double>(kMax)), {}});
        const auto observe = [&](When when) {
          std::vector<std::vector<float>> value;
          std::vector<Tokens> tokens;
          for (uint32_t list = 0; list < 2 * n_apart; ++list) {
            Head& head = heads[list / n_apart];
            tokens.push_back(head.alive);
            value.push_back(random_mass(1, head.alive.size(), scene.seq.kv_len * 4 + list)[0]);
            const double share = n_apart == 1 ? 0.5 : 1.0;  // mean over two query heads
            for (size_t i = 0; i < head.alive.size(); ++i) {
              head.sum[list % n_apart][head.alive[i]] += share * double{value.back()[i]};
            }
          }
          REQUIRE(scene.observe(1, value, tokens, when) == KVASIR_OK);
        };
        const auto evict = [&](When when) {
          const uint32_t n = scene.seq.kv_len;
          std::vector<Tokens> candidates;
          for (const Head& head : heads) {
            candidates.emplace_back();
            for (const uint32_t t : head.alive) {
              if (t >= kSink && t + kWindow < n) candidates.back().push_back(t);
            }
          }
          const auto kept = scene.plan(1, when, candidates);
          REQUIRE(scene.status == KVASIR_OK);
          for (size_t h = 0; h < 2; ++h) {
            Tokens older, stays, alive;
            for (const uint32_t t : candidates[h]) (t + kRecent < n ? older : stays).push_back(t);
            for (const uint32_t t : best_of(heads[h].weights(n, normalize), older, kHeavy)) {
              stays.push_back(t);
            }
            std::sort(stays.begin(), stays.end());
            CHECK(kept[h] == stays);
            for (const uint32_t t : heads[h].alive) {
              const bool forced = t < kSink || t + kWindow >= n;
              if (forced || std::binary_search(stays.begin(), stays.end(), t)) alive.push_back(t);
            }
            heads[h].alive = alive;
          }
        };
        for (const uint32_t end : {33u, kPrompt}) {  // two chunks
          scene.prompt(0, kPrompt);
          scene.seq.kv_len = end;
          for (Head& head : heads) head.alive = range(0, end);
          observe(kPromptAttended);
        }
        evict(kPromptStepEnd);
        CHECK(!scene.dropped);
        CHECK(heads[0].alive.size() == kSink + kHeavy + kRecent);
        for (uint32_t i = 0; i < 60; ++i) {
          scene.decoded();
          for (Head& head : heads) head.alive.push_back(scene.seq.kv_len - 1);
          observe(kDecodeAttended);
          evict(kDecodeStepEnd);
          CHECK(scene.dropped);
          CHECK(scene.n_listed == 2);  // one token of each kv head goes
        }
        if (n_apart == 1) {  // the sums themselves, as they lie in the slab
          for (uint32_t t = 0; t < scene.seq.kv_len; ++t) {
            CHECK(double{scene.pages.record(1, t / 16)[t % 16]} ==
                  doctest::Approx(heads[1].sum[0][t]));
          }
        }
      }
    }
  }

  TEST_CASE("shared over the layer, all heads lose the same tokens") {
    kvasir_geometry geometry = eviction_geometry(0, 1);
    geometry.head_select_shared = 1;
    Scene scene({{"budget_tokens", int64_t{2}}}, geometry);
    CHECK(scene.limits.scope == KVASIR_SCOPE_SEQUENCE);
    scene.prompt(0, 5);
    REQUIRE(scene.observe(0, {{1, 4, 2, 3, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0) == std::vector<Tokens>{{1, 3}});
  }

  TEST_CASE("before anything is evicted the sums of a head add up to the number of its queries") {
    constexpr uint32_t kN = 50;
    Scene scene({}, eviction_geometry(0, 1));
    scene.prompt(0, kN);
    std::mt19937 random(8);
    std::normal_distribution<double> logit;
    std::vector<std::vector<float>> sums(2, std::vector<float>(kN));
    for (uint32_t query = 0; query < kN; ++query) {
      for (uint32_t q_head = 0; q_head < 4; ++q_head) {  // each a softmax over what it may see
        std::vector<double> p(query + 1);
        double total = 0;
        for (double& x : p) total += x = std::exp(3 * logit(random));
        for (uint32_t t = 0; t <= query; ++t)
          sums[q_head / 2][t] += static_cast<float>(p[t] / total);
      }
    }
    REQUIRE(scene.observe(0, sums) == KVASIR_OK);
    for (uint32_t head = 0; head < 2; ++head) {
      double total = 0;
      for (uint32_t t = 0; t < kN; ++t) {
        total += double{scene.pages.record(head, t / 16)[t % 16]};
      }
      CHECK(total == doctest::Approx(kN).epsilon(1e-6));
    }
  }

  TEST_CASE("a heavy sum still takes small shares") {
    Scene scene({{"budget_tokens", int64_t{1}}}, eviction_geometry(0, 1));
    scene.prompt(0, 3);
    // Halved by the group: 2048 + 0.5 against 2048, which f16 could not tell apart.
    REQUIRE(scene.observe(0, {{4096, 4096, 0}, {4096, 4096, 0}}) == KVASIR_OK);
    REQUIRE(scene.observe(0, {{0, 1, 0}, {0, 1, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0) == std::vector<Tokens>{{1}, {1}});
  }

  TEST_CASE("a context within the budget loses nothing") {
    Scene scene({{"budget_tokens", int64_t{20}}}, eviction_geometry(0, 4));
    scene.prompt(0, 24);
    REQUIRE(scene.observe(0, random_mass(2, 24, 3)) == KVASIR_OK);
    CHECK(scene.plan(0)[1] == range(0, 20));
    CHECK(scene.n_listed == 0);
    scene.decoded();
    REQUIRE(scene.observe(0, random_mass(2, 25, 4), {}, kDecodeAttended) == KVASIR_OK);
    CHECK(scene.plan(0, kDecodeStepEnd)[1].size() == 20);  // of 21
    Scene none({{"budget_tokens", int64_t{0}}}, eviction_geometry(0, 4));
    none.prompt(0, 24);
    REQUIRE(none.observe(0, random_mass(2, 24, 3)) == KVASIR_OK);
    CHECK(none.plan(0)[0].empty());
  }

  TEST_CASE("budgets: absolute, native, and as shares of the prompt") {
    const kvasir_geometry geometry = eviction_geometry(4, 100);  // max_context 4096
    CHECK(limits_of({{"budget_tokens", int64_t{50}}}, geometry).max_units == 50);
    CHECK(limits_of({{"hh_size", int64_t{48}}}, geometry).max_units == 48);
    CHECK(
        limits_of({{"hh_size", int64_t{48}}, {"recent_size", int64_t{150}}}, geometry).max_units ==
        98);
    CHECK(limits_of({{"heavy_ratio", 0.1}, {"recent_ratio", 0.1}}, geometry).max_units ==
          409 + 409 - 100);
    CHECK(limits_of({{"heavy_ratio", 0.1}}, geometry).max_units == 409);
    Scene scene({{"heavy_ratio", 0.1}, {"recent_ratio", 0.25}}, eviction_geometry(0, 1));
    scene.prompt(0, 39);  // 3 heavy, 9 recent
    REQUIRE(scene.observe(0, {std::vector<float>(39, 1), std::vector<float>(39, 1)}) == KVASIR_OK);
    Tokens expected{0, 1, 2};
    for (const uint32_t t : range(30, 38)) expected.push_back(t);
    CHECK(scene.plan(0)[0] == expected);
  }

  TEST_CASE("a sum takes 4 bytes per token and kv head, or query head where they count apart") {
    kvasir_geometry geometry = eviction_geometry(0, 1);
    CHECK(EvictionScene("h2o", {}, geometry).layout.record_bytes == 4 * 16);
    geometry.gqa_reduce = KVASIR_REDUCE_MAX;
    CHECK(EvictionScene("h2o", {}, geometry).layout.record_bytes == 2 * 4 * 16);
    check_claim(
        "selector/h2o",
        "4 bytes per token, layer and kv head (per query head with `gqa_reduce = \"max\"`)");
  }

  TEST_CASE("drop evicts, mask restricts") {
    const kvasir_geometry geometry = eviction_geometry(4, 8);
    CHECK(limits_of({}, geometry).plans.action == KVASIR_ACTION_EVICT);
    CHECK(limits_of({{"mode", std::string("mask")}}, geometry).plans.action ==
          KVASIR_ACTION_RESTRICT);
    CHECK((EvictionScene("h2o", {}, geometry).layout.flags & KVASIR_LAYOUT_OBSERVE_WRITES) != 0);
  }

  TEST_CASE("budgets that contradict each other are refused") {
    FakeHost host;
    CHECK(are_alternatives(host, "h2o", {"budget_tokens", "hh_size", "heavy_ratio"}));
    CHECK(are_alternatives(host, "h2o", {"recent_size", "recent_ratio"}));
    Selector below(host, "h2o", {{"recent_size", int64_t{4}}});
    CHECK(validate(below, eviction_geometry(0, 8)) == KVASIR_ERR_INVALID);
    CHECK(below.text().find("window_tokens = 8") != std::string::npos);
    Selector nothing(host, "h2o", {{"recent_size", int64_t{40}}, {"budget_tokens", int64_t{31}}});
    CHECK(validate(nothing, eviction_geometry(0, 8)) == KVASIR_ERR_INVALID);
    CHECK(validate(nothing, eviction_geometry(0, 9)) == KVASIR_OK);
  }
}

}  // namespace
