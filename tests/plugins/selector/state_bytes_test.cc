// What each strategy keeps of its own per token, measured, beside the number its README claims.
// Others stand with their methods: h2o, infinigen, magicpig, snapkv, tova. What plugins say of it
// before a run: stated_bytes_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/eviction_scene.h"
#include "tests/support/readme.h"

namespace {
using namespace kvasir::test;

// Layout of a plugin for 4 query heads of 128 per kv head and blocks of 128.
template <class Table>
kvasir_layout layout_of(const std::string& name, const OptionValues& options) {
  FakeHost host;
  PluginInstance<Table> plugin(host, name, options);
  kvasir_geometry geometry = small_geometry();
  geometry.n_kv_heads = 2;
  geometry.n_q_heads = 8;
  geometry.head_dim = geometry.v_dim = geometry.block_size = 128;
  geometry.window_tokens = 256;
  plugin.bind(geometry);
  kvasir_layout layout{};
  if (plugin->layout) REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
  return layout;
}
const auto layout_of_selector = layout_of<kvasir_selector>;
const auto layout_of_representative = layout_of<kvasir_representative>;

TEST_SUITE("plugins/selector/state") {
  TEST_CASE("who keeps nothing has nowhere to keep it") {
    for (const char* name :
         {"dense", "streaming", "block_topk", "infllm", "duoattention", "oracle", "random"}) {
      CAPTURE(std::string(name));
      FakeHost host;
      PluginInstance<kvasir_selector> selector(host, name);
      CHECK_FALSE(static_cast<bool>(selector->layout));  // no slab
      CHECK_FALSE(static_cast<bool>(selector->update));
      CHECK_FALSE(static_cast<bool>(selector->observe));        // nothing is collected
      CHECK_FALSE(static_cast<bool>(selector->base.seq_open));  // nothing is known of a sequence
    }
    check_claim("selector/dense", "| Own state | none |");
    check_claim("selector/streaming", "Own state: none.");
    check_claim("selector/block_topk", "Own state: none.");
    check_claim("selector/infllm", "Own state: none;");
    check_claim("selector/duoattention", "It keeps no state per token.");
    check_claim("selector/oracle", "It keeps no state.");
    check_claim("selector/random", "It keeps no state.");
  }

  TEST_CASE("Quest: two vectors per block and kv head") {
    for (const uint32_t e : {2u, 4u}) {
      const kvasir_layout layout =
          layout_of_representative("minmax", {{"dtype", std::string(e == 2 ? "f16" : "f32")}});
      CHECK(layout.record_bytes == 2 * 128 * e);
      CHECK(layout.open_bytes == 0);
    }
    check_claim(
        "representative/minmax",
        "`2 * head_dim * e` bytes per layer, kv head and block (`e`: q8_0 1.0625, f16 2, f32 4)");
  }

  TEST_CASE("InfLLM: a key per block and query head, sums while a token is in the window") {
    const kvasir_layout layout =
        layout_of_representative("dynamic", {{"mass", std::string("window")},
                                             {"combine", std::string("mean")},
                                             {"representative_num", int64_t{4}}});
    CHECK(layout.record_bytes == 4 * 128 * 2);
    CHECK(layout.record_bytes / 128 == 8);
    CHECK(layout.open_bytes == 128 * 4 * 4);
    check_claim("selector/infllm",
                "`group_size * head_dim * 2` bytes per block and kv head (8 bytes "
                "per token, layer and kv head in the preset");
    check_claim(
        "selector/infllm",
        "sums of `4 * group_size` bytes per token, layer and kv head while it is in the window");
  }

  TEST_CASE("Twilight: a key of four bits per element") {
    const kvasir_layout layout = layout_of_selector("twilight", {});
    CHECK(layout.record_bytes == 128 * 72);
    CHECK(layout.open_bytes == 0);
    check_claim("selector/twilight",
                "`8 + head_dim / 2` bytes per token, layer and kv head: 72 at "
                "head_dim 128");
  }

  // Heap bytes of votes on a prompt of a million tokens, and after the plan.
  struct Votes {
    double per_token = 0, left = 0;
  };
  Votes votes_of(const std::string& name, const OptionValues& options, uint32_t n_lists,
                 uint32_t unit_tokens) {
    constexpr uint32_t kN = 1u << 20;
    EvictionScene scene(name, options, eviction_geometry(0, 16));
    scene.prompt(0, kN);
    scene.seq.unit_end /= unit_tokens;
    const auto mass = random_mass(n_lists, kN, 1);
    const size_t before = heap_bytes();
    REQUIRE(scene.observe(1, mass) == KVASIR_OK);
    const size_t voted = heap_bytes();
    scene.plan(1);
    REQUIRE(scene.status == KVASIR_OK);
    return {static_cast<double>(voted - before) / kN,
            (static_cast<double>(heap_bytes()) - static_cast<double>(before)) / kN};
  }

  TEST_CASE("PyramidKV: votes of 4 bytes per prompt token and kv head until the prompt ends") {
    if (!counts_heap_bytes()) return;
    const Votes votes = votes_of("pyramidkv", {{"budget_tokens", int64_t{8}}}, 2, 1);
    CHECK(votes.per_token == doctest::Approx(2 * 4).epsilon(0.01));
    CHECK(votes.left < 0.01);
    check_claim("selector/pyramidkv",
                "4 bytes per prompt token, kv head and layer until the prompt ends, then 0");
  }

  TEST_CASE("preselection: votes of 4 bytes per prompt token, until the prompt ends") {
    if (!counts_heap_bytes()) return;
    const OptionValues shared{{"preselect_block_count", int64_t{8}}};
    const Votes one = votes_of("preselect", shared, 1, 16);
    CHECK(one.per_token == doctest::Approx(4).epsilon(0.01));
    CHECK(one.left < 0.01);
    OptionValues separate = shared;
    separate["head_select_mode"] = std::string("separate");
    const Votes two = votes_of("preselect", separate, 2, 16);
    CHECK(two.per_token == doctest::Approx(2 * 4).epsilon(0.01));
    CHECK(two.left < 0.01);
    check_claim("selector/preselect",
                "4 bytes per prompt token and sparse layer (`separate`: times the kv heads)");
  }
}

}  // namespace
