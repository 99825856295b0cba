// random: how much is drawn from what; that it is drawn evenly is tests/oracles/random_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/plugins/selector/key_scene.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
using Tokens = std::vector<uint32_t>;
using Lists = std::vector<Tokens>;

struct Draws {
  explicit Draws(const OptionValues& options, kvasir_geometry geometry = small_geometry(),
                 uint32_t n_tokens = 64)
      : host(2),
        selector(host, "random", options),
        scene(geometry,
              std::vector<float>(size_t{n_tokens} * geometry.n_kv_heads * geometry.head_dim),
              std::vector<float>(size_t{geometry.n_q_heads} * geometry.head_dim)) {
    selector.bind(scene.geometry());
    REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
  }
  // One list per kv head, or one for all.
  Lists from(uint32_t begin, uint32_t end) {
    scene.candidates(begin, end);
    return scene.choose(selector, limits);
  }
  FakeHost host;
  Selector selector;
  KeyScene scene;
  kvasir_sel_limits limits = blank_limits();
};

OptionValues tokens(int64_t budget) {
  return {{"unit", std::string("token")}, {"budget_tokens", budget}};
}

TEST_SUITE("plugins/selector/random") {
  TEST_CASE("as many as the budget, or as there are, or none") {
    Draws draws(tokens(5));
    for (const Tokens& list : draws.from(3, 40)) {
      CHECK(list.size() == 5);
      CHECK(std::set<uint32_t>(list.begin(), list.end()).size() == 5);
      CHECK(list.front() >= 3);
      CHECK(list.back() < 40);
    }
    CHECK(draws.from(3, 40) == draws.from(3, 40));
    CHECK(draws.from(10, 15) == Lists(2, {10, 11, 12, 13, 14}));
    CHECK(draws.from(10, 13) == Lists(2, {10, 11, 12}));
    CHECK(draws.from(10, 10) == Lists(2));
  }

  TEST_CASE("heads draw apart, from lists of unlike lengths") {
    Draws draws(tokens(3));
    SelectionBuffer listed(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD,
                           {{2, 3, 5, 7, 11, 13, 17}, {4, 6}});
    draws.scene.listed = &listed.selection;
    const auto lists = draws.from(0, 20);
    CHECK(lists[0].size() == 3);
    for (const uint32_t t : lists[0])
      CHECK(std::binary_search(listed.index.begin(), listed.index.begin() + 7, t));
    CHECK(lists[1] == Tokens{4, 6});
    draws.scene.listed = nullptr;
    CHECK(draws.from(0, 60)[0] != draws.from(0, 60)[1]);
  }

  TEST_CASE("one draw for all heads when the selection is shared") {
    kvasir_geometry geometry = small_geometry();
    geometry.head_select_shared = 1;
    Draws draws(tokens(3), geometry);
    CHECK(draws.limits.scope == KVASIR_SCOPE_SEQUENCE);
    CHECK(draws.from(0, 60)[0].size() == 3);
  }

  TEST_CASE("limits follow the budget; nothing is asked for or kept") {
    Draws draws({{"budget_tokens", int64_t{50}}});
    CHECK(draws.limits.unit == KVASIR_UNIT_BLOCK);
    CHECK(draws.limits.scope == KVASIR_SCOPE_KV_HEAD);
    CHECK(draws.limits.max_units == 3);  // blocks of 16
    CHECK(draws.selector.desc().needs == KVASIR_NEED_TOKEN_ITEMS);
    CHECK_FALSE(static_cast<bool>(draws.selector->layout));
    CHECK_FALSE(static_cast<bool>(draws.selector->base.seq_open));
    CHECK(Draws(tokens(50)).limits.max_units == 50);
  }

  TEST_CASE("a budget below a block is refused by name") {
    FakeHost host;
    Selector selector(host, "random", {{"budget_tokens", int64_t{15}}});
    const kvasir_geometry geometry = small_geometry();
    CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(selector.text().find("budget_tokens") != std::string::npos);
    CHECK(selector.text().find("16") != std::string::npos);
  }
}

}  // namespace
