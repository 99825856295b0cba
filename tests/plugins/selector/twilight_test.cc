// twilight: the fewest tokens that carry the share p, from records of four bits per element.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/key_scene.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
using Tokens = std::vector<uint32_t>;
using Lists = std::vector<Tokens>;

kvasir_sel_limits limits_of(Selector& selector) {
  kvasir_sel_limits limits{};
  REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
  return limits;
}

// The scene's keys are fed block by block as they would be while they are written.
Lists prune(KeyScene& scene, const OptionValues& options, uint32_t begin, uint32_t end) {
  FakeHost host(2);
  Selector selector(host, "twilight", options);
  selector.bind(scene.geometry());
  scene.provide_slab(selector);
  const uint32_t n_blocks =
      (scene.n_tokens() + scene.geometry().block_size - 1) / scene.geometry().block_size;
  for (uint32_t block = 0; block < n_blocks; ++block)
    REQUIRE(scene.update(selector, kPromptAppended, KVASIR_ITEM_NEW, block, block + 1) ==
            KVASIR_OK);
  scene.candidates(begin, end);
  return scene.choose(selector, limits_of(selector));
}

TEST_SUITE("plugins/selector/twilight") {
  // Two elements per key fall on the ends of the 16 steps: four bits lose nothing.
  const std::vector<double> kShare = {0.1, 0.05, 0.2, 0.05, 0.3, 0.05, 0.05, 0.2};

  TEST_CASE("the fewest that reach the share; equal ones go to the lower token") {
    ShareScene scene(kShare);
    CHECK(prune(scene, {{"p", 0.0}}, 0, 8) == Lists{{}});
    CHECK(prune(scene, {{"p", 0.29}}, 0, 8) == Lists{{4}});
    CHECK(prune(scene, {{"p", 0.31}}, 0, 8) == Lists{{2, 4}});
    CHECK(prune(scene, {{"p", 0.69}}, 0, 8) == Lists{{2, 4, 7}});
    CHECK(prune(scene, {{"p", 0.81}}, 0, 8) == Lists{{0, 1, 2, 4, 7}});
    CHECK(prune(scene, {{"p", 0.94}}, 0, 8) == Lists{{0, 1, 2, 3, 4, 5, 7}});
    CHECK(prune(scene, {{"p", 1.0}}, 0, 8) == Lists{{0, 1, 2, 3, 4, 5, 6, 7}});
  }

  TEST_CASE("the share is one of the candidates' attention") {
    ShareScene scene(kShare);
    // Tokens 2 to 6 hold 0.65 of all, token 4 nearly half of that.
    CHECK(prune(scene, {{"p", 0.45}}, 2, 7) == Lists{{4}});
    CHECK(prune(scene, {{"p", 0.48}}, 2, 7) == Lists{{2, 4}});
    CHECK(prune(scene, {{"p", 0.9}}, 5, 6) == Lists{{5}});
    CHECK(prune(scene, {{"p", 0.9}}, 5, 5) == Lists{{}});
    SelectionBuffer listed(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_SEQUENCE,
                           {{0, 1, 3, 6}});  // 0.25 of all
    scene.listed = &listed.selection;
    CHECK(prune(scene, {{"p", 0.39}}, 0, 8) == Lists{{0}});
    CHECK(prune(scene, {{"p", 0.5}}, 0, 8) == Lists{{0, 1}});
  }

  TEST_CASE("heads of a group unite what they keep; groups keep unlike numbers") {
    kvasir_geometry geometry = ShareScene::geometry_of_one_head();
    geometry.n_q_heads = 4;
    geometry.n_kv_heads = 2;
    const float low = -20.0f;  // no mass to speak of
    // Heads 0 and 1 each look at a token of their own, heads 2 and 3 at the same.
    const std::vector<float> keys = {4,   low, low, low, low, 5,   low, low,
                                     low, low, 9,   9,   low, low, low, low};
    KeyScene scene(geometry, keys, {1, 0, 0, 1, 1, 1, 1, 1});
    CHECK(prune(scene, {{"p", 0.9}}, 0, 4) == Lists{{0, 1}, {2}});
    SelectionBuffer listed(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, {{0, 3}, {2}});
    scene.listed = &listed.selection;
    CHECK(prune(scene, {{"p", 0.4}}, 0, 4) == Lists{{0}, {2}});
  }

  TEST_CASE("a budget cuts what is kept to the largest sums, and no further") {
    kvasir_geometry geometry = ShareScene::geometry_of_one_head();
    geometry.n_q_heads = 2;
    const auto share = [](double a, double b) {
      return std::vector<float>{static_cast<float>(std::log(a)), static_cast<float>(std::log(b))};
    };
    std::vector<float> keys;  // shares of head 0 and head 1: sums 0.6, 0.5, 0.5, 0.4
    for (const auto& [a, b] : {std::pair{0.5, 0.1}, {0.1, 0.4}, {0.2, 0.3}, {0.2, 0.2}})
      for (const float x : share(a, b)) keys.push_back(x);
    KeyScene scene(geometry, keys, {1, 0, 0, 1});
    const auto cut = [&](double p, int64_t budget) {
      return prune(scene, {{"p", p}, {"budget_tokens", budget}}, 0, 4)[0];
    };
    CHECK(cut(1.0, 1) == Tokens{0});
    CHECK(cut(1.0, 3) == Tokens{0, 1, 2});
    CHECK(cut(1.0, 9) == Tokens{0, 1, 2, 3});
    CHECK(cut(0.39, 9) == Tokens{0, 1});
    CHECK(cut(0.39, 2) == Tokens{0, 1});
    CHECK(cut(0.39, 1) == Tokens{0});
  }

  TEST_CASE("a model's soft cap levels the shares") {
    std::vector<double> share = kShare;
    for (double& x : share) x *= 1e-3;  // all logits far below zero
    ShareScene scene(share);
    CHECK(prune(scene, {{"p", 0.69}}, 0, 8) == Lists{{2, 4, 7}});
    kvasir_geometry geometry = ShareScene::geometry_of_one_head();
    geometry.softcap = 1.0f;
    std::vector<float> keys;
    for (uint32_t t = 0; t < 8; ++t) keys.insert(keys.end(), scene.key(t, 0), scene.key(t, 0) + 2);
    KeyScene capped(geometry, keys, {1.0f, 0.0f});
    CHECK(prune(capped, {{"p", 0.69}}, 0, 8)[0].size() == 6);  // of 8 nearly equal ones
  }

  TEST_CASE("four bits: a key is known to a thirtieth of its range") {
    kvasir_geometry geometry = ShareScene::geometry_of_one_head();
    geometry.n_q_heads = 1;
    geometry.head_dim = geometry.v_dim = 4;
    // Ranges of 15, steps of 1: 7.4 is taken for 7, and 7.6 for 8.
    const std::vector<float> keys = {0, 15, 7.4f, 7.4f, 0, 15, 7.0f, 7.0f,
                                     0, 15, 7.6f, 7.4f, 0, 15, 6.0f, 6.0f};
    KeyScene scene(geometry, keys, {0, 0, 10, 10});
    CHECK(prune(scene, {{"p", 0.9}}, 0, 2) == Lists{{0, 1}});  // equal in four bits
    CHECK(prune(scene, {{"p", 0.9}}, 0, 4) == Lists{{2}});
  }

  TEST_CASE("8 bytes and half a byte per element, token and kv head") {
    for (const uint32_t head_dim : {8u, 64u, 128u, 256u})
      for (const uint32_t block_size : {16u, 128u}) {
        kvasir_geometry geometry = small_geometry();
        geometry.head_dim = geometry.v_dim = head_dim;
        geometry.block_size = block_size;
        FakeHost host;
        Selector selector(host, "twilight");
        selector.bind(geometry);
        kvasir_layout layout{};
        REQUIRE(selector->layout(selector.self(), &layout, selector.err()) == KVASIR_OK);
        CHECK(layout.record_bytes == block_size * (8 + head_dim / 2));
        CHECK(layout.open_bytes == 0);
        CHECK((layout.flags & KVASIR_LAYOUT_PER_TOKEN) != 0);  // a cut keeps the others
        CHECK_FALSE(static_cast<bool>(selector->base.seq_open));
      }
  }

  TEST_CASE("limits: tokens per kv head, at most the budget") {
    FakeHost host;
    Selector free(host, "twilight");
    free.bind(small_geometry());
    CHECK(limits_of(free).unit == KVASIR_UNIT_TOKEN);
    CHECK(limits_of(free).scope == KVASIR_SCOPE_KV_HEAD);
    CHECK(limits_of(free).max_units == 0);
    Selector capped(host, "twilight", {{"budget_tokens", int64_t{77}}});
    kvasir_geometry geometry = small_geometry();
    geometry.head_select_shared = 1;
    capped.bind(geometry);
    CHECK(limits_of(capped).max_units == 77);
    CHECK(limits_of(capped).scope == KVASIR_SCOPE_KV_HEAD);
  }

  TEST_CASE("keys it cannot read are refused") { check_refuses_unreadable_keys("twilight"); }

  TEST_CASE("a buffer that is too small is answered with the number needed") {
    ShareScene scene(kShare);
    FakeHost host;
    Selector selector(host, "twilight", {{"p", 0.69}});
    selector.bind(scene.geometry());
    scene.provide_slab(selector);
    REQUIRE(scene.update(selector, kPromptAppended, KVASIR_ITEM_NEW, 0, 2) == KVASIR_OK);
    scene.candidates(0, 8);
    SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 1, 2);
    CHECK(scene.select(selector, out.selection) == KVASIR_ERR_CAPACITY);
    CHECK(out.selection.needed == 3);
    CHECK(out.index == Tokens(out.index.size(), SelectionBuffer::kUnwritten));
  }
}

}  // namespace
