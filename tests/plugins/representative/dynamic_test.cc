// dynamic against plain loops in double: which keys it keeps, when, and how it scores them.
// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <numeric>

#include "tests/plugins/representative/scene.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

// 4 query heads over 2 kv heads. Mass of one block: [q_head][token].
using Mass = std::vector<std::vector<double>>;

struct DynamicScene : Scene {
  using Scene::Scene;
  std::vector<std::vector<float>> buffers;
  std::deque<kvasir_view> views;

  kvasir_update_item mass_item(uint32_t block, const Mass& mass, uint32_t flags = 0) {
    auto& flat = buffers.emplace_back();
    for (const auto& head : mass)
      for (const double m : head) flat.push_back(static_cast<float>(m));
    const uint32_t n = n_tokens[block];
    const kvasir_view& view = views.emplace_back(sdk::host_view(flat.data(), {mass.size(), n}));
    return {0, block, n, 0, n, KVASIR_ITEM_MASS | flags, &leases[block], &view};
  }
  void start(Representative& plugin) {
    prepare(plugin);
    REQUIRE(plugin->base.seq_open(plugin.self(), &seq.id, 1, plugin.err()) == KVASIR_OK);
  }
  // Of a chunk that ends at `kv_len` of a prompt of `prompt_end` tokens.
  void at(uint32_t kv_len, uint32_t prompt_end) {
    seq.kv_len = kv_len;
    seq.prompt_end = prompt_end;
  }
  void seal_all(Representative& plugin) {
    std::vector<kvasir_update_item> items;
    for (uint32_t b = 0; b < n_blocks(); ++b)
      if (n_tokens[b] == geometry.block_size)
        items.push_back(item(b, 0, n_tokens[b], KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED));
    update(plugin, items);
  }
};

Mass random_mass(std::mt19937& random, uint32_t n_tokens) {
  std::uniform_real_distribution<double> uniform(0.01, 1.0);
  Mass mass(4, std::vector<double>(n_tokens));
  for (auto& head : mass)
    for (double& m : head) m = std::floor(uniform(random) * 16) / 16;  // equal ones on purpose
  return mass;
}

// Score of one block for one query head, without mass: of the mean, as often as keys are kept.
double expected(const float* q, const Keys& keys, const std::vector<double>* mass, uint32_t n,
                const std::string& combine) {
  std::vector<double> dots;
  for (const auto& key : keys) {
    double dot = 0;
    for (size_t d = 0; d < key.size(); ++d) dot += q[d] * key[d];
    dots.push_back(dot);
  }
  std::vector<double> kept;
  if (mass) {
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return (*mass)[a] > (*mass)[b]; });
    for (uint32_t i = 0; i < n; ++i) kept.push_back(dots[order[i]]);
  } else {
    kept.assign(n, std::accumulate(dots.begin(), dots.end(), 0.0) / double(dots.size()));
  }
  if (combine == "max") return *std::max_element(kept.begin(), kept.end());
  return std::accumulate(kept.begin(), kept.end(), 0.0) / (combine == "mean" ? n : 1);
}

void check_scores(DynamicScene& scene, Representative& plugin, const std::vector<const Mass*>& mass,
                  uint32_t n, const std::string& combine, double tolerance) {
  const std::vector<float> q = scene.random_query(3);
  const auto scores = scene.score(plugin, q, scene.n_blocks());
  for (uint32_t h = 0; h < 4; ++h)
    for (uint32_t b = 0; b < scene.n_blocks(); ++b) {
      if (scene.n_tokens[b] < scene.geometry.block_size) continue;
      CAPTURE(h);
      CAPTURE(b);
      const double want = expected(q.data() + h * scene.geometry.head_dim, scene.keys[b][h / 2],
                                   mass[b] ? &(*mass[b])[h] : nullptr, n, combine);
      CHECK(std::abs(scores[h][b] - want) <= tolerance);
    }
}

DynamicScene& filled(DynamicScene& scene, uint32_t n_blocks, uint32_t last_tokens) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (uint32_t b = 0; b < n_blocks; ++b)
    scene.add_block(b + 1 == n_blocks ? last_tokens : scene.geometry.block_size,
                    [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
  return scene;
}

TEST_SUITE("plugins/representative/dynamic") {
  TEST_CASE("the most attended key, and of equals the first: 0.1 0.4 0.4 0.1") {
    FakeHost host;
    Representative plugin(host, "dynamic");
    DynamicScene scene(KVASIR_DTYPE_F32, 1, 4);
    scene.add_block(4, [](uint32_t, uint32_t t, uint32_t) { return 1.0 + t; });
    scene.start(plugin);
    scene.at(4, 4);
    scene.update(plugin, {scene.mass_item(0, Mass(4, {0.1, 0.4, 0.4, 0.1}))});
    const auto scores = scene.score(plugin, {1, 1, 1, 1}, 1);
    for (uint32_t h = 0; h < 4; ++h) CHECK(scores[h][0] == 2.0f);
  }

  TEST_CASE("KTransformers: of a sum of keys, channels whose product is negative do not count") {
    const OptionValues theirs = {{"compat", std::string("ktransformers")}};
    // Four channels; keys 1 and 2 of a block are kept, their sum is (1, -3, 0.5, -1).
    const double k[4][4] = {{9, 9, 9, 9}, {2, -1, 0, -3}, {-1, -2, 0.5, 2}, {9, 9, 9, 9}};
    for (const std::string dtype : {"f32", "f16"})
      for (const int64_t n : {1, 2}) {
        CAPTURE(n);
        FakeHost host;
        auto options = theirs;
        options["representative_num"] = n;
        options["dtype"] = dtype;
        Representative plugin(host, "dynamic", options);
        DynamicScene scene(KVASIR_DTYPE_F32, 4, 4);
        for (int b = 0; b < 2;
             ++b)  // the second gets no mass: twice its mean, (9.5, 7.5, 9.25, 8.5)
          scene.add_block(4, [&](uint32_t, uint32_t t, uint32_t d) { return k[t][d]; });
        scene.start(plugin);
        scene.seal_all(plugin);
        scene.at(8, 8);
        scene.update(plugin, {scene.mass_item(0, Mass(4, {0.1, 0.4, 0.3, 0.2}))});
        // Query heads 0 and 1 share a kv head, and have records of their own.
        const auto scores =
            scene.score(plugin, {1, 1, 2, 1, 1, -1, -4, 2, -1, 1, -1, 1, 0, 0, 0, -1}, 2);
        if (n == 1) {  // (2, -1, 0, -3), all channels
          CHECK(scores[0][0] == -2.0f);
          CHECK(scores[1][0] == -3.0f);
          CHECK(scores[2][0] == -6.0f);
          CHECK(scores[3][0] == 3.0f);
          continue;
        }
        CHECK(scores[0][0] == 1.0f + 1.0f);
        CHECK(scores[1][0] == 1.0f + 3.0f);
        CHECK(scores[2][0] == 0.0f);
        CHECK(scores[3][0] == 1.0f);
        CHECK(scores[0][1] == 9.5f + 7.5f + 18.5f + 8.5f);
        CHECK(scores[1][1] == 9.5f + 17.0f);
        CHECK(scores[2][1] == 7.5f + 8.5f);
        CHECK(scores[3][1] == 0.0f);
      }
    for (const std::string combine : {"mean", "max"}) {
      FakeHost host;
      auto options = theirs;
      options["combine"] = combine;
      const Representative plugin(host, "dynamic", options);
      CHECK(plugin.status() == KVASIR_ERR_INVALID);
      CHECK(plugin.text().find("drop combine") != std::string::npos);
    }
  }

  TEST_CASE("each query head keeps its own keys; every type, shape and combination") {
    for (const std::string combine : {"sum", "max", "mean"})
      for (const std::string type : {"f32", "f16", "q8_0"})
        for (const uint32_t dtype : {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16, KVASIR_DTYPE_BF16})
          for (const auto& [dim, block_size, n] : {std::tuple{1u, 1u, 1u},
                                                   {7u, 4u, 4u},
                                                   {80u, 16u, 3u},
                                                   {96u, 5u, 2u},
                                                   {128u, 33u, 1u}}) {
            if (type == "q8_0" && dim % 32 != 0) continue;
            CAPTURE(combine);
            CAPTURE(type);
            CAPTURE(dim);
            FakeHost host(dtype == KVASIR_DTYPE_F16 ? 3 : 0);
            Representative plugin(
                host, "dynamic",
                {{"dtype", type}, {"combine", combine}, {"representative_num", int64_t{n}}});
            DynamicScene scene(dtype, dim, block_size);
            filled(scene, 9, block_size);
            scene.start(plugin);
            CHECK(scene.layout.flags == KVASIR_LAYOUT_SEALED_ONLY);  // private: shaped by mass
            CHECK(scene.layout.open_bytes == 0);
            CHECK(scene.layout.mass.at == KVASIR_MASS_AT_PREFILL);
            CHECK(scene.layout.mass.last_queries == 128);
            const uint64_t elements = 2ull * (combine == "max" ? n : 1) * dim;
            const uint64_t bytes =
                type == "q8_0" ? elements / 32 * 34 : elements * (type == "f32" ? 4 : 2);
            CHECK(scene.layout.record_bytes == (bytes + 3) / 4 * 4);
            scene.seal_all(plugin);
            std::vector<const Mass*> mass(9, nullptr);
            const double tolerance = (type == "q8_0"  ? 0x1p-5
                                      : type == "f16" ? 0x1p-9
                                                      : 1e-5) *
                                     n * dim;
            check_scores(scene, plugin, mass, n, combine, tolerance);  // nothing but means yet
            std::mt19937 random(dim);
            std::vector<Mass> masses;
            for (uint32_t b = 0; b < 9; ++b) masses.push_back(random_mass(random, block_size));
            std::vector<kvasir_update_item> items;
            for (uint32_t b = 0; b < 9; ++b) {
              if (b == 4) continue;  // filled while answering: stays a mean
              items.push_back(scene.mass_item(b, masses[b]));
              mass[b] = &masses[b];
            }
            scene.at(9 * block_size, 9 * block_size);
            scene.update(plugin, items);
            check_scores(scene, plugin, mass, n, combine, tolerance);
          }
  }

  TEST_CASE("mass of the last queries adds up over chunks, the next prompt starts anew") {
    FakeHost host(2);
    Representative plugin(host, "dynamic", {{"dtype", std::string("f32")}});
    DynamicScene scene(KVASIR_DTYPE_F32, 16, 8);
    filled(scene, 5, 3);
    scene.start(plugin);
    scene.seal_all(plugin);
    std::mt19937 random(1);
    std::vector<Mass> first, second, sums;
    for (uint32_t b = 0; b < 4; ++b) {
      first.push_back(random_mass(random, 8));
      second.push_back(random_mass(random, 8));
      sums.push_back(first[b]);
      for (size_t h = 0; h < 4; ++h)
        for (size_t t = 0; t < 8; ++t) sums[b][h][t] += second[b][h][t];
    }
    const Mass open(4, {0.5, 0.25, 0.125});
    const auto tell = [&](uint32_t kv_len, uint32_t prompt_end, std::vector<Mass>& mass,
                          uint32_t n_blocks) {
      std::vector<kvasir_update_item> items;
      for (uint32_t b = 0; b < n_blocks; ++b) items.push_back(scene.mass_item(b, mass[b]));
      if (kv_len == 35) items.push_back(scene.mass_item(4, open));
      scene.at(kv_len, prompt_end);
      scene.update(plugin, items);
    };
    const std::vector<const Mass*> nothing(5, nullptr);
    const auto of = [](const std::vector<Mass>& m) {
      return std::vector<const Mass*>{&m[0], &m[1], &m[2], &m[3], nullptr};
    };
    tell(24, 35, first, 3);  // block 3 comes with the last chunk only
    check_scores(scene, plugin, nothing, 1, "sum", 1e-4);
    tell(35, 35, second, 4);
    sums[3] = second[3];
    check_scores(scene, plugin, of(sums), 1, "sum", 1e-4);
    tell(24, 36, first, 3);  // given up
    tell(35, 35, second, 4);
    check_scores(scene, plugin, of(second), 1, "sum", 1e-4);
    tell(24, 35, first, 3);
    const uint64_t seq = 1, child = 2;
    REQUIRE(plugin->base.seq_fork(plugin.self(), &seq, &child, 1, plugin.err()) == KVASIR_OK);
    const uint32_t kv_len = 8;
    REQUIRE(plugin->base.seq_truncate(plugin.self(), &seq, &kv_len, 1, plugin.err()) == KVASIR_OK);
    tell(35, 35, second, 4);
    check_scores(scene, plugin, of(second), 1, "sum", 1e-4);  // what was cut is forgotten
    scene.seq.id = child;
    tell(35, 35, second, 4);
    check_scores(scene, plugin, of(sums), 1, "sum", 1e-4);  // and remembered by the fork
  }

  TEST_CASE("mass of the window: sums while the block is in it, a record when it has left") {
    FakeHost host(2);
    Representative plugin(host, "dynamic",
                          {{"mass", std::string("window")},
                           {"combine", std::string("mean")},
                           {"dtype", std::string("f32")},
                           {"representative_num", int64_t{3}}});
    DynamicScene scene(KVASIR_DTYPE_F32, 16, 8);
    scene.geometry.window_tokens = 16;
    filled(scene, 6, 5);
    scene.start(plugin);
    CHECK(scene.layout.flags == (KVASIR_LAYOUT_SEALED_ONLY | KVASIR_LAYOUT_WANT_FINAL));
    CHECK(scene.layout.open_bytes == 2 * 8 * sizeof(float));
    CHECK(scene.layout.mass.at == (KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE));
    CHECK(scene.layout.mass.part == KVASIR_PART_WINDOW);
    CHECK(scene.layout.mass.last_queries == UINT32_MAX);
    scene.seal_all(plugin);
    std::mt19937 random(2);
    std::vector<Mass> sums(6, Mass(4, std::vector<double>(8)));
    std::vector<const Mass*> mass(6, nullptr);
    for (uint32_t round = 0; round < 3; ++round) {
      std::vector<kvasir_update_item> items;
      for (uint32_t b = 0; b < 6; ++b) {
        const Mass more = random_mass(random, scene.n_tokens[b]);
        for (size_t h = 0; h < 4; ++h)
          for (size_t t = 0; t < more[h].size(); ++t) sums[b][h][t] += more[h][t];
        items.push_back(scene.mass_item(b, more));
      }
      scene.update(plugin, items);
    }
    check_scores(scene, plugin, mass, 3, "mean", 1e-4);
    std::vector<kvasir_update_item> left;
    for (uint32_t b = 0; b < 4; ++b) {
      mass[b] = &sums[b];
      left.push_back({0, b, 8, 0, 8, KVASIR_ITEM_FINAL, &scene.leases[b], nullptr});
    }
    scene.update(plugin, left);
    check_scores(scene, plugin, mass, 3, "mean", 1e-4);
  }

  TEST_CASE("options that contradict each other or the run are refused by name") {
    FakeHost host;
    Representative both(host, "dynamic",
                        {{"mass", std::string("window")}, {"last_queries", int64_t{5}}});
    CHECK(both.status() == KVASIR_ERR_INVALID);
    CHECK(both.text().find("last_queries") != std::string::npos);
    kvasir_geometry geometry = small_geometry();
    Representative many(host, "dynamic", {{"representative_num", int64_t{17}}});
    CHECK(many->base.validate(many.self(), &geometry, many.err()) == KVASIR_ERR_INVALID);
    CHECK(many.text().find("representative_num = 17") != std::string::npos);
    geometry.window_tokens = 0;
    Representative window(host, "dynamic", {{"mass", std::string("window")}});
    CHECK(window->base.validate(window.self(), &geometry, window.err()) == KVASIR_ERR_INVALID);
    CHECK(window.text().find("window_tokens") != std::string::npos);
  }
}

}  // namespace
