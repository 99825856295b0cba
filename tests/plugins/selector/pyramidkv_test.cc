// PyramidKV: how many tokens each layer keeps. Votes are tested with SnapKV, which shares them.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/selector/eviction_scene.h"

namespace {
using namespace kvasir::test;

// Tokens kept before the window in each layer, for a cap that counts the window.
std::vector<size_t> kept_by_layer(uint32_t n_layers, uint32_t window, int64_t cap, uint32_t prompt,
                                  int64_t beta = 20, bool kvpress = false, uint32_t sink = 0) {
  kvasir_geometry geometry = eviction_geometry(sink, window);
  geometry.n_layers = n_layers;
  geometry.n_q_heads = geometry.n_kv_heads = 1;
  EvictionScene scene("pyramidkv",
                      {{"max_capacity_prompt", cap}, {"beta", beta}, {"compat", int64_t{kvpress}}},
                      geometry);
  scene.prompt(0, prompt);
  const auto mass = random_mass(1, prompt, 5);
  std::vector<size_t> out;
  for (uint32_t layer = 0; layer < n_layers; ++layer) {
    REQUIRE(scene.observe(layer, mass) == KVASIR_OK);
    out.push_back(scene.plan(layer)[0].size());
    CHECK(out.back() <= std::min<uint64_t>(scene.limits.max_units, prompt - window - sink));
  }
  return out;
}

TEST_SUITE("plugins/selector/pyramidkv") {
  TEST_CASE("published budgets: a long prompt, a short one, a small cap") {
    const auto large = kept_by_layer(32, 8, 2048, 32768);
    CHECK(large[0] == 3978);
    CHECK(large[1] == 3853);
    CHECK(large[15] == 2103);
    CHECK(large[31] == 103);
    CHECK(std::accumulate(large.begin(), large.end(), size_t{0}) == 65296);
    const auto middle = kept_by_layer(32, 8, 512, 8192);
    CHECK(middle[0] == 983);
    CHECK(middle[30] == 83);
    CHECK(middle[31] == 53);
    CHECK(kept_by_layer(32, 8, 2048, 3000) == std::vector<size_t>(32, 2040));  // uniform
    const auto small = kept_by_layer(32, 8, 128, 8192);
    CHECK(small[0] == 234);
    CHECK(small[1] == 227);
    CHECK(small[15] == 129);
    CHECK(small[31] == 17);
  }

  TEST_CASE("boundaries: all, uniform, falling, and a first layer that takes everything") {
    // base 10, window 4: all below a prompt of 14, uniform below 20.
    CHECK(kept_by_layer(4, 4, 14, 13) == std::vector<size_t>(4, 9));
    CHECK(kept_by_layer(4, 4, 14, 14) == std::vector<size_t>(4, 10));
    CHECK(kept_by_layer(4, 4, 14, 19) == std::vector<size_t>(4, 10));
    // 16 before the window: most = 16, least = 4, steps of 4.
    CHECK(kept_by_layer(4, 4, 14, 20, 5) == std::vector<size_t>{16, 12, 8, 4});
    CHECK(kept_by_layer(4, 4, 14, 40, 5) == std::vector<size_t>{18, 13, 8, 3});
    CHECK(kept_by_layer(1, 4, 14, 40) == std::vector<size_t>{10});
  }

  TEST_CASE("kvpress: floats, rounded half to even, the window counted in, short prompts too") {
    const auto kept = [](uint32_t n_layers, uint32_t window, int64_t cap, uint32_t prompt,
                         int64_t beta = 20) {
      return kept_by_layer(n_layers, window, cap, prompt, beta, true);
    };
    // 2048 / 20 = 102.4 and 4096 - 102.4 = 3993.6, in steps of 3891.2 / 31; all but 8 of each.
    const auto large = kept(32, 8, 2048, 32768);
    CHECK(large[0] == 3986);   // 3993.6
    CHECK(large[1] == 3860);   // 3868.08
    CHECK(large[15] == 2103);  // 2110.76
    CHECK(large[31] == 94);    // 102.4
    const auto sum = std::accumulate(large.begin(), large.end(), size_t{0});
    CHECK(sum == 65280);  // 32 * 2040: each pair of layers from the ends sums to twice the mean
    // 3000 tokens, less than twice 2048: 2992 before the window bound the first layer.
    const auto shorter = kept(32, 8, 2048, 3000);
    CHECK(shorter[0] == 2984);   // 2992
    CHECK(shorter[1] == 2923);   // 2992 - 1888 / 31 = 2931.1
    CHECK(shorter[31] == 1096);  // 4096 - 2992 = 1104
    // 128 / 20 = 6.4 is less than the window: all layers alike.
    CHECK(kept(32, 8, 128, 8192) == std::vector<size_t>(32, 120));
    // Halves: 18 / 2 = 9, 27 and steps of 4.5: 27, 22.5, 18, 13.5, 9.
    CHECK(kept(5, 4, 18, 60, 2) == std::vector<size_t>{23, 18, 14, 10, 5});
    CHECK(kept(1, 4, 14, 40) == std::vector<size_t>{10});
    CHECK(kept(4, 4, 14, 13) == std::vector<size_t>(4, 9));
    // A sink counts like the window: 20 in all, 4 of them forced, from 30 to 10 in steps of 20 / 3.
    CHECK(kept_by_layer(4, 2, 20, 90, 2, true, 2) == std::vector<size_t>{26, 19, 13, 6});
  }

  TEST_CASE("layers rank by the same votes and differ in how many they keep") {
    kvasir_geometry geometry = eviction_geometry(0, 4);
    geometry.n_layers = 3;
    EvictionScene scene(
        "pyramidkv",
        {{"budget_tokens", int64_t{20}}, {"beta", int64_t{10}}, {"kernel_size", int64_t{1}}},
        geometry);
    scene.prompt(0, 80);
    const auto mass = random_mass(2, 80, 9);
    const size_t expected[] = {38, 20, 2};
    for (uint32_t layer = 0; layer < 3; ++layer) {
      REQUIRE(scene.observe(layer, mass) == KVASIR_OK);
      const auto kept = scene.plan(layer);
      for (size_t h = 0; h < 2; ++h) {
        const std::vector<double> vote(mass[h].begin(), mass[h].end());
        CHECK(kept[h] == best_of(vote, range(0, 76), expected[layer]));
      }
    }
  }

  TEST_CASE("the ends of the pyramid are logged") {
    FakeHost host(1);
    PluginInstance<kvasir_selector> selector(host, "pyramidkv",
                                             {{"max_capacity_prompt", int64_t{2048}}});
    kvasir_geometry geometry = eviction_geometry(0, 8);
    geometry.n_layers = 32;
    selector.bind(geometry);
    REQUIRE(host.lines().size() == 2);
    CHECK(host.lines()[1].find("3978 in layer 0, 103 in layer 31") != std::string::npos);
  }
}

}  // namespace
