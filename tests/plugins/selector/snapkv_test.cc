// SnapKV: the golden case, votes over chunks, pooling, groups, budgets, and what it refuses.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/eviction_scene.h"
#include "tests/support/readme.h"

namespace {
using namespace kvasir::test;

// kernel 1, one query head per kv head unless said otherwise.
OptionValues options(int64_t budget, int64_t kernel, const char* pooling = "avgpool") {
  return {{"budget_tokens", budget}, {"kernel_size", kernel}, {"pooling", std::string(pooling)}};
}

// Pooling restated: [0, n), zeros outside.
std::vector<double> pooled(const std::vector<double>& vote, uint32_t n, int kernel, bool max) {
  std::vector<double> out(n);
  for (int i = 0; i < static_cast<int>(n); ++i) {
    double sum = 0, best = 0;
    for (int j = i - kernel / 2; j <= i + kernel / 2; ++j) {
      const double v = j >= 0 && j < static_cast<int>(n) ? vote[static_cast<size_t>(j)] : 0;
      sum += v;
      best = std::max(best, v);
    }
    out[static_cast<size_t>(i)] = max ? best : sum / kernel;
  }
  return out;
}

TEST_SUITE("plugins/selector/snapkv") {
  TEST_CASE("votes 0 0 3 0: the pooled ones tie, and the lower token wins") {
    for (const char* pooling : {"avgpool", "maxpool"}) {
      EvictionScene scene("snapkv", options(1, 3, pooling), eviction_geometry(0, 2));
      scene.prompt(0, 6);
      // What the window got does not bleed over its edge.
      REQUIRE(scene.observe(0, {{0, 0, 3, 0, 9, 9}, {0, 5, 3, 0, 9, 9}}) == KVASIR_OK);
      const auto kept = scene.plan(0);
      CHECK(kept[0] == Tokens{1});  // 0 1 1 1, or 0 3 3 3
      CHECK(kept[1] == (std::string(pooling) == "avgpool" ? Tokens{1} : Tokens{0}));
    }
  }

  TEST_CASE("each kv head keeps what its pooled votes rank first, whatever the chunks") {
    for (const uint32_t workers : {0u, 3u}) {
      for (const int kernel : {1, 5, 7}) {
        for (const bool max : {false, true}) {
          for (const uint32_t budget : {0u, 1u, 20u, 79u}) {
            CAPTURE(kernel);
            CAPTURE(max);
            CAPTURE(budget);
            EvictionScene scene("snapkv", options(budget, kernel, max ? "maxpool" : "avgpool"),
                                eviction_geometry(4, 16), workers);
            CHECK(scene.limits.mass.last_queries == 16);
            CHECK(scene.limits.plans.action == KVASIR_ACTION_EVICT);
            scene.prompt(0, 100);
            std::vector<std::vector<double>> votes(2, std::vector<double>(100));
            for (const uint32_t kv_len : {93u, 100u}) {  // the voters lie in two chunks
              scene.seq.kv_len = kv_len;
              const auto mass = random_mass(2, kv_len, kv_len);
              REQUIRE(scene.observe(1, mass) == KVASIR_OK);
              for (size_t h = 0; h < 2; ++h)
                for (size_t t = 0; t < kv_len; ++t) votes[h][t] += double{mass[h][t]};
            }
            const auto kept = scene.plan(1);
            for (size_t h = 0; h < 2; ++h) {
              CHECK(kept[h] == best_of(pooled(votes[h], 84, kernel, max), range(4, 84), budget));
            }
          }
        }
      }
    }
  }

  TEST_CASE("the group counts by its sum, or by its largest member") {
    for (const uint32_t reduce : {KVASIR_REDUCE_SUM, KVASIR_REDUCE_MEAN, KVASIR_REDUCE_MAX}) {
      kvasir_geometry geometry = eviction_geometry(0, 1);
      geometry.gqa_reduce = reduce;
      EvictionScene scene("snapkv", options(1, 1), geometry);
      scene.prompt(0, 4);
      if (reduce == KVASIR_REDUCE_MAX) {  // heads 0, 1 | 2, 3
        CHECK(scene.limits.mass.reduce == KVASIR_MASS_PER_Q_HEAD);
        REQUIRE(scene.observe(0, {{5, 4, 0, 0}, {0, 4, 0, 0}, {0, 0, 1, 0}, {0, 2, 1, 0}}) ==
                KVASIR_OK);
        CHECK(scene.plan(0) == std::vector<Tokens>{{0}, {1}});
      } else {
        CHECK(scene.limits.mass.reduce == KVASIR_MASS_SUM_KV_HEAD);
        REQUIRE(scene.observe(0, {{5, 8, 0, 0}, {0, 2, 2, 0}}) == KVASIR_OK);
        CHECK(scene.plan(0) == std::vector<Tokens>{{1}, {1}});
      }
    }
  }

  TEST_CASE("one choice for all heads when the selection is shared") {
    kvasir_geometry geometry = eviction_geometry(0, 1);
    geometry.head_select_shared = 1;
    EvictionScene scene("snapkv", options(2, 1), geometry);
    CHECK(scene.limits.scope == KVASIR_SCOPE_SEQUENCE);
    CHECK(scene.limits.mass.reduce == KVASIR_MASS_SUM_ALL);
    scene.prompt(0, 5);
    REQUIRE(scene.observe(0, {{1, 4, 2, 3, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0) == std::vector<Tokens>{{1, 3}});
  }

  TEST_CASE("only what lives can stay") {
    EvictionScene scene("snapkv", options(2, 1), eviction_geometry(0, 2));
    scene.prompt(10, 16);
    const Tokens attended{2, 5, 9, 10, 11, 12, 13, 14, 15};
    REQUIRE(scene.observe(0, {{9, 8, 0, 0, 0, 0, 1, 0, 0}, {0, 1, 0, 2, 0, 0, 3, 0, 0}},
                          {attended, attended}) == KVASIR_OK);
    const auto kept =
        scene.plan(0, kPromptStepEnd, {{2, 5, 9, 10, 11, 12, 13}, {5, 9, 11, 12, 13}});
    CHECK(kept[0] == Tokens{2, 5});
    CHECK(kept[1] == Tokens{5, 13});  // 10 had more, but is not there
  }

  TEST_CASE("a context that fits is kept, and state ends with the plan") {
    EvictionScene scene("snapkv", options(8, 5), eviction_geometry(0, 4));
    scene.prompt(0, 12);
    REQUIRE(scene.observe(0, random_mass(2, 12, 1)) == KVASIR_OK);
    CHECK(scene.plan(0)[0] == range(0, 8));
    CHECK(scene.n_listed == 0);
    scene.plan(0);
    CHECK(scene.status == KVASIR_ERR_INVALID);  // nobody voted since
    CHECK(scene.selector.text().find("layer 0") != std::string::npos);
  }

  TEST_CASE("votes take 4 bytes per prompt token and kv head until the plan, then nothing") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kN = 1u << 20;
    EvictionScene scene("snapkv", options(8, 5), eviction_geometry(0, 4));
    scene.prompt(0, kN);
    const auto mass = random_mass(2, kN, 1);
    const size_t before = heap_bytes();
    REQUIRE(scene.observe(0, mass) == KVASIR_OK);
    const size_t votes = heap_bytes() - before;
    CHECK(votes >= 2 * 4 * kN);
    CHECK(votes < 2 * 4 * kN * 1.01);
    CHECK(scene.plan(0)[0].size() == 8);
    CHECK(heap_bytes() < before + kN / 100);
    check_claim("selector/snapkv", "votes take 4 bytes per prompt token and kv head (query head");
    check_claim("selector/snapkv", "after the prompt 0 bytes");
  }

  TEST_CASE("every prompt is voted on anew; layers and sequences do not mix") {
    EvictionScene scene("snapkv", options(1, 1), eviction_geometry(0, 1));
    scene.open(2);
    scene.prompt(0, 4);
    REQUIRE(scene.observe(0, {{9, 0, 0, 0}, {9, 0, 0, 0}}) == KVASIR_OK);
    REQUIRE(scene.observe(1, {{0, 9, 0, 0}, {0, 9, 0, 0}}) == KVASIR_OK);
    scene.seq.id = 2;
    REQUIRE(scene.observe(0, {{0, 0, 9, 0}, {0, 0, 9, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0)[1] == Tokens{2});
    const uint64_t parent = 1, child = 3;
    REQUIRE(scene.selector->base.seq_fork(scene.selector.self(), &parent, &child, 1,
                                          scene.selector.err()) == KVASIR_OK);
    for (const uint64_t seq : {parent, child}) {
      scene.seq.id = seq;
      CHECK(scene.plan(1)[0] == Tokens{1});
    }
    scene.seq.id = 1;  // its first prompt was given up before its end
    scene.prompt(4, 8);
    REQUIRE(scene.observe(0, {{0, 0, 0, 0, 3, 0, 0, 0}, {0, 1, 0, 0, 0, 2, 0, 0}}) == KVASIR_OK);
    CHECK(scene.plan(0) == std::vector<Tokens>{{4}, {5}});
    REQUIRE(scene.observe(0, {{1, 0, 0, 0, 3, 0, 0, 0}, {0, 1, 0, 0, 0, 2, 0, 0}}) == KVASIR_OK);
    const uint32_t kv_len = 2;
    REQUIRE(scene.selector->base.seq_truncate(scene.selector.self(), &parent, &kv_len, 1,
                                              scene.selector.err()) == KVASIR_OK);
    scene.plan(0);
    CHECK(scene.status == KVASIR_ERR_INVALID);
    scene.selector->base.seq_close(scene.selector.self(), &parent, 1);
    CHECK(scene.observe(0, {{1}, {1}}) == KVASIR_ERR_INVALID);
  }

  TEST_CASE("the paper's cap holds sink and window") {
    const OptionValues capped{{"max_capacity_prompt", int64_t{64}}, {"kernel_size", int64_t{1}}};
    FakeHost host(1);
    PluginInstance<kvasir_selector> selector(host, "snapkv", capped);
    selector.bind(eviction_geometry(4, 32));
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
    CHECK(limits.max_units == 28);
    REQUIRE(host.lines().size() == 1);
    CHECK(host.lines()[0].find("budget_tokens = 28") != std::string::npos);
  }

  TEST_CASE("retrieval restricts instead of evicting") {
    EvictionScene scene("snapkv", {{"mode", std::string("retrieve")}}, eviction_geometry(0, 4));
    CHECK(scene.limits.plans.action == KVASIR_ACTION_RESTRICT);
  }

  TEST_CASE("what cannot work is refused by name") {
    using Selector = PluginInstance<kvasir_selector>;
    FakeHost host;
    const Selector even(host, "snapkv", {{"kernel_size", int64_t{4}}});
    CHECK(even.status() == KVASIR_ERR_INVALID);
    CHECK(even.text().find("use 5") != std::string::npos);
    CHECK(are_alternatives(host, "snapkv", {"budget_tokens", "max_capacity_prompt"}));
    const auto refused = [&](const OptionValues& set, const kvasir_geometry& geometry) {
      Selector selector(host, "snapkv", set);
      CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) ==
            KVASIR_ERR_INVALID);
      return selector.text();
    };
    CHECK(refused({{"max_capacity_prompt", int64_t{35}}}, eviction_geometry(4, 32))
              .find("window_tokens = 32") != std::string::npos);
    CHECK(refused({}, eviction_geometry(4, 0)).find("nobody votes") != std::string::npos);
    kvasir_geometry geometry = eviction_geometry(4, 32);
    geometry.gqa_reduce = KVASIR_REDUCE_SOFTMAX_SUM;
    CHECK(refused({}, geometry).find("softmax_sum") != std::string::npos);
  }

  TEST_CASE("mass of another shape is refused") {
    EvictionScene scene("snapkv", options(1, 1), eviction_geometry(0, 1));
    scene.prompt(0, 4);
    CHECK(scene.observe(0, {{1, 2, 3, 4}}) == KVASIR_ERR_INVALID);  // one list, two kv heads
  }
}

}  // namespace
