// oracle: the exact choice from keys as the host hands them out.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/key_scene.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
using Tokens = std::vector<uint32_t>;

Tokens choose(KeyScene& scene, const OptionValues& options, uint32_t begin, uint32_t end) {
  FakeHost host(2);
  Selector selector(host, "oracle", options);
  selector.bind(scene.geometry());
  kvasir_sel_limits limits = blank_limits();
  REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
  scene.candidates(begin, end);
  return scene.choose(selector, limits)[0];
}

const OptionValues kTokens{{"unit", std::string("token")}, {"budget_tokens", int64_t{2}}};
OptionValues share_of(double p, const char* unit) {
  return {{"unit", std::string(unit)}, {"p", p}};
}

TEST_SUITE("plugins/selector/oracle") {
  const std::vector<double> kShare = {0.1, 0.05, 0.2, 0.05, 0.3, 0.05, 0.05, 0.2};

  TEST_CASE("the best by number; equal ones go to the lower index") {
    ShareScene scene(kShare);
    CHECK(choose(scene, kTokens, 0, 8) == Tokens{2, 4});
    CHECK(choose(scene, kTokens, 3, 8) == Tokens{4, 7});
    CHECK(choose(scene, kTokens, 5, 7) == Tokens{5, 6});  // as many as there are
    CHECK(choose(scene, kTokens, 5, 6) == Tokens{5});
    CHECK(choose(scene, kTokens, 5, 5).empty());
    const OptionValues one_block{{"budget_tokens", int64_t{7}}};  // rounded down
    CHECK(choose(scene, one_block, 0, 2) == Tokens{1});           // 0.6 of the mass
    CHECK(choose(scene, one_block, 0, 1) == Tokens{0});
    ShareScene equal({0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125});
    CHECK(choose(equal, kTokens, 1, 8) == Tokens{1, 2});
    CHECK(choose(equal, one_block, 0, 2) == Tokens{0});
  }

  TEST_CASE("the fewest that reach a share, forced tokens first") {
    ShareScene scene(kShare);
    CHECK(choose(scene, share_of(0.29, "token"), 0, 8) == Tokens{4});
    CHECK(choose(scene, share_of(0.31, "token"), 0, 8) == Tokens{2, 4});
    CHECK(choose(scene, share_of(0.69, "token"), 0, 8) == Tokens{2, 4, 7});
    CHECK(choose(scene, share_of(0.99, "token"), 0, 8).size() == 8);
    // Tokens 0, 1, 7 are forced and hold 0.35 already.
    CHECK(choose(scene, share_of(0.34, "token"), 2, 7).empty());
    CHECK(choose(scene, share_of(0.6, "token"), 2, 7) == Tokens{4});
    CHECK(choose(scene, share_of(0.8, "token"), 2, 7) == Tokens{2, 4});
    CHECK(choose(scene, share_of(0.5, "block"), 0, 2) == Tokens{1});
    CHECK(choose(scene, share_of(0.7, "block"), 0, 2) == Tokens{0, 1});
  }

  TEST_CASE("what an earlier selector left out is missed, not attended") {
    ShareScene scene(kShare);
    SelectionBuffer listed(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD,
                           {{0, 2, 3, 6}});  // 0.4 of the mass
    scene.listed = &listed.selection;
    CHECK(choose(scene, kTokens, 0, 7) == Tokens{0, 2});
    // Token 7 is forced: 0.2. With token 2 that is 0.4, with 0 as well 0.5.
    CHECK(choose(scene, share_of(0.39, "token"), 0, 7) == Tokens{2});
    CHECK(choose(scene, share_of(0.49, "token"), 0, 7) == Tokens{0, 2});
    CHECK(choose(scene, share_of(0.9, "token"), 0, 7) == Tokens{0, 2, 3, 6});  // all there are
  }

  TEST_CASE("masses are summed over the heads that share a list") {
    kvasir_geometry geometry = ShareScene::geometry_of_one_head();
    geometry.n_q_heads = 4;
    geometry.n_kv_heads = 2;
    const float low = -20.0f;  // no mass to speak of
    // Head 0 looks at token 0, head 1 more keenly at token 1; heads 2 and 3 at token 2.
    const std::vector<float> keys = {4,   0,   low, low, 0,   5,   low, low,
                                     low, low, 9,   9,   low, low, 0,   0};
    const std::vector<float> q = {1, 0, 0, 1, 1, 1, 1, 1};
    for (const bool shared : {false, true}) {
      geometry.head_select_shared = shared;
      KeyScene scene(geometry, keys, q);
      scene.candidates(0, 4);
      FakeHost host;
      Selector selector(host, "oracle",
                        {{"unit", std::string("token")}, {"budget_tokens", int64_t{1}}});
      selector.bind(scene.geometry());
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      // Of all heads: two look at token 2.
      const std::vector<Tokens> best =
          shared ? std::vector<Tokens>{{2}} : std::vector<Tokens>{{1}, {2}};
      CHECK(scene.choose(selector, limits) == best);
    }
  }

  TEST_CASE("limits follow unit, share and mode; nothing is kept") {
    FakeHost host;
    Selector by_number(host, "oracle", {{"budget_tokens", int64_t{50}}});
    by_number.bind(small_geometry());
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(by_number->limits(by_number.self(), &limits, by_number.err()) == KVASIR_OK);
    CHECK(limits.unit == KVASIR_UNIT_BLOCK);
    CHECK(limits.scope == KVASIR_SCOPE_KV_HEAD);
    CHECK(limits.max_units == 3);
    CHECK((by_number.desc().needs & KVASIR_NEED_KEYS) != 0);
    CHECK_FALSE(static_cast<bool>(by_number->layout));
    CHECK_FALSE(static_cast<bool>(by_number->base.seq_open));
    Selector by_share(host, "oracle", share_of(0.9, "token"));
    kvasir_geometry geometry = small_geometry();
    geometry.head_select_shared = 1;
    by_share.bind(geometry);
    limits = blank_limits();
    REQUIRE(by_share->limits(by_share.self(), &limits, by_share.err()) == KVASIR_OK);
    CHECK(limits.unit == KVASIR_UNIT_TOKEN);
    CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
    CHECK(limits.max_units == KVASIR_NO_LIMIT);  // a share is no number: no bypass by count
  }

  TEST_CASE("a budget or a share decides; one below a block and unreadable keys are refused") {
    FakeHost host;
    CHECK(are_alternatives(host, "oracle", {"budget_tokens", "p"}));
    Selector small(host, "oracle", {{"budget_tokens", int64_t{15}}});
    const kvasir_geometry geometry = small_geometry();
    CHECK(small->base.validate(small.self(), &geometry, small.err()) == KVASIR_ERR_INVALID);
    CHECK(small.text().find("budget_tokens") != std::string::npos);
    check_refuses_unreadable_keys("oracle");
  }

  TEST_CASE("a buffer that is too small is answered with the number needed") {
    ShareScene scene(kShare);
    FakeHost host;
    Selector selector(host, "oracle", share_of(0.69, "token"));
    selector.bind(scene.geometry());
    scene.candidates(0, 8);
    SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 1, 2);
    CHECK(scene.select(selector, out.selection) == KVASIR_ERR_CAPACITY);
    CHECK(out.selection.needed == 3);
    CHECK(out.index == Tokens(out.index.size(), SelectionBuffer::kUnwritten));
  }
}

}  // namespace
