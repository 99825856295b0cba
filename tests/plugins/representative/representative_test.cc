// Representatives against plain loops in double over the keys as stored.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tests/plugins/representative/scene.h"

namespace {
using namespace kvasir::test;

constexpr double kF16Rounding = 0x1p-11;  // half a unit in the last place, relative
// Half a step of a group, and the rounding of its scale; relative to the group's largest element.
constexpr double kQ8Rounding = 0.5 / 127 + 0x1p-11;

double dot(const float* q, const std::vector<double>& k) {
  double sum = 0;
  for (size_t d = 0; d < k.size(); ++d) sum += q[d] * k[d];
  return sum;
}

// What each method's score is, exactly, and the sum of magnitudes its rounding scales with.
struct Exact {
  double score = 0, magnitude = 0;
  double steps = 0;  // the same with each element as large as the largest of its record
};
Exact exact(const std::string& name, int64_t n, const float* q, const Keys& keys) {
  const size_t dims = keys[0].size();
  Exact out;
  double of_queries = 0, largest = 0;
  for (size_t d = 0; d < dims; ++d) {
    double low = keys[0][d], high = low, sum = 0, picked = 0, widest = 0;
    for (const auto& k : keys) {
      low = std::min(low, k[d]);
      high = std::max(high, k[d]);
      sum += k[d];
    }
    for (int64_t i = 0; i < n; ++i) {
      const double k = keys[static_cast<size_t>(i) * keys.size() / static_cast<size_t>(n)][d];
      picked += k;
      widest += std::fabs(k);
    }
    double term = 0, size = std::max(std::fabs(low), std::fabs(high));
    if (name == "mean") term = q[d] * sum / static_cast<double>(keys.size());
    if (name == "max") term = q[d] * high;
    if (name == "minmax") term = std::max(q[d] * low, q[d] * high);
    if (name == "fixed") {
      term = q[d] * picked;
      size = widest;
    }
    out.score += term;
    out.magnitude += std::fabs(q[d]) * size;
    of_queries += std::fabs(q[d]);
    largest = std::max(largest, size);
  }
  out.steps = of_queries * largest;
  return out;
}

std::vector<float> one_group(std::vector<float> q) {  // the same query for all 4 heads
  std::vector<float> out;
  for (int h = 0; h < 4; ++h) out.insert(out.end(), q.begin(), q.end());
  return out;
}

TEST_SUITE("plugins/representative") {
  TEST_CASE("minmax: the published examples, tight and loose") {
    const double page[2][2] = {{1, -1}, {-2, 3}};
    for (const std::string dtype : {"f32", "f16"}) {
      FakeHost host;
      Representative minmax(host, "minmax", {{"dtype", dtype}});
      Scene scene(KVASIR_DTYPE_F32, 2, 2);
      scene.add_block(2, [&](uint32_t, uint32_t t, uint32_t d) { return page[t][d]; });
      scene.build(minmax);
      CHECK(scene.score(minmax, one_group({0.5f, -1.0f}), 1)[0][0] == 1.5f);
      CHECK(scene.score(minmax, one_group({-1.0f, -1.0f}), 1)[3][0] == 3.0f);
    }
  }

  TEST_CASE("max of negative keys is negative, mean divides by the valid tokens") {
    FakeHost host;
    Scene scene(KVASIR_DTYPE_F16, 2, 16);
    scene.add_block(3, [](uint32_t, uint32_t t, uint32_t d) { return -1.0 - t - d; });
    Representative max(host, "max");
    scene.build(max);
    CHECK(scene.score(max, one_group({1.0f, 0.0f}), 1)[0][0] == -1.0f);
    CHECK(scene.score(max, one_group({0.0f, 1.0f}), 1)[0][0] == -2.0f);
    Representative clamped(host, "max", {{"compat", std::string("ktransformers")}});
    scene.build(clamped);
    CHECK(scene.score(clamped, one_group({1.0f, 1.0f}), 1)[0][0] == 0.0f);
    Representative mean(host, "mean");
    scene.build(mean);
    CHECK(scene.score(mean, one_group({1.0f, 0.0f}), 1)[0][0] == -2.0f);
  }

  TEST_CASE("fixed keeps keys 0, B/n, 2B/n apart and sums or maximises over them") {
    FakeHost host;
    Scene scene(KVASIR_DTYPE_F32, 1, 8);
    const double k[8] = {1, 100, -3, 100, 5, 100, -7, 100};
    scene.add_block(8, [&](uint32_t, uint32_t t, uint32_t) { return k[t]; });
    Representative sum(host, "fixed", {{"representative_num", int64_t{4}}});
    scene.build(sum);
    CHECK(scene.layout.record_bytes == 8);
    CHECK(scene.score(sum, one_group({1.0f}), 1)[0][0] == -4.0f);
    Representative max(host, "fixed", {{"representative_num", int64_t{4}}, {"combine", "max"}});
    scene.build(max);
    CHECK(scene.score(max, one_group({1.0f}), 1)[0][0] == 5.0f);
    CHECK(scene.score(max, one_group({-1.0f}), 1)[0][0] == 7.0f);
    Representative many(host, "fixed", {{"representative_num", int64_t{9}}});
    CHECK(many->base.validate(many.self(), &scene.geometry, many.err()) == KVASIR_ERR_INVALID);
    CHECK(many.text().find("representative_num = 9") != std::string::npos);
  }

  TEST_CASE("every method, key type, record type and shape agrees with plain loops") {
    for (const std::string name : {"mean", "max", "minmax", "fixed"}) {
      for (const std::string type : {"f32", "f16", "q8_0"}) {
        for (const uint32_t dtype : {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16, KVASIR_DTYPE_BF16}) {
          for (const auto& [head_dim, block_size] :
               {std::pair{1u, 1u}, {7u, 4u}, {80u, 16u}, {96u, 5u}, {128u, 33u}}) {
            if (type == "q8_0" && head_dim % 32 != 0) continue;
            CAPTURE(name);
            CAPTURE(type);
            CAPTURE(dtype);
            CAPTURE(head_dim);
            std::mt19937 random(head_dim + dtype);
            std::normal_distribution<double> normal;
            Scene scene(dtype, head_dim, block_size);
            for (uint32_t b = 0; b < 9; ++b) {  // one of them short
              scene.add_block(b == 5 ? (block_size + 1) / 2 : block_size,
                              [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
            }
            const int64_t n = name == "fixed" ? std::min(3u, block_size) : 1;
            OptionValues options{{"dtype", type}};
            if (name == "fixed") options["representative_num"] = n;
            FakeHost host(dtype == KVASIR_DTYPE_F16 ? 3 : 0);
            Representative plugin(host, name, options);
            scene.build(plugin);
            CHECK(scene.layout.flags == (KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_SEALED_ONLY));
            CHECK(scene.layout.open_bytes == 0);
            const uint64_t vectors = name == "minmax" ? 2 : static_cast<uint64_t>(n);
            const uint64_t bytes = type == "q8_0" ? vectors * head_dim / 32 * 34
                                                  : vectors * head_dim * (type == "f32" ? 4 : 2);
            CHECK(scene.layout.record_bytes == (bytes + 3) / 4 * 4);

            const std::vector<float> q = scene.random_query(3);
            const auto scores = scene.score(plugin, q, 9);
            // minmax rounds outwards: a whole unit in the last place
            const double rounding =
                (type == "f16" ? (name == "minmax" ? 2 : 1) * kF16Rounding : 0.0) + 1e-6;
            const double step = type == "q8_0" ? (name == "minmax" ? 2 : 1) * kQ8Rounding : 0.0;
            for (uint32_t h = 0; h < 4; ++h) {
              for (uint32_t b = 0; b < 9; ++b) {
                const float* qh = q.data() + h * head_dim;
                const Exact want = exact(name, n, qh, scene.keys[b][h / 2]);
                CHECK(std::fabs(scores[h][b] - want.score) <=
                      rounding * want.magnitude + step * want.steps + 1e-6);
              }
            }
          }
        }
      }
    }
  }

  TEST_CASE("q8_0 records need whole groups") {
    for (const std::string name : {"mean", "max", "minmax", "fixed", "dynamic"}) {
      FakeHost host;
      Scene scene(KVASIR_DTYPE_F16, 80, 16);
      Representative plugin(host, name, {{"dtype", "q8_0"}});
      CHECK(plugin->base.validate(plugin.self(), &scene.geometry, plugin.err()) ==
            KVASIR_ERR_INVALID);
      CHECK(plugin.text().find("head_dim = 80") != std::string::npos);
    }
  }

  TEST_CASE("minmax is an upper bound of every dot product, in f16 and q8_0 too") {
    for (const auto& [dtype, type] : {std::pair{KVASIR_DTYPE_F32, "f16"},
                                      {KVASIR_DTYPE_BF16, "f16"},
                                      {KVASIR_DTYPE_F32, "q8_0"},
                                      {KVASIR_DTYPE_BF16, "q8_0"}}) {
      for (const double scale : {1e-7, 1e-3, 1.0, 1e3}) {  // subnormal f16 to large
        std::mt19937 random(5);
        std::normal_distribution<double> normal;
        Scene scene(dtype, 64, 16);
        for (int b = 0; b < 20; ++b) {
          scene.add_block(16, [&](uint32_t, uint32_t, uint32_t) { return scale * normal(random); });
        }
        FakeHost host;
        Representative minmax(host, "minmax", {{"dtype", type}});
        scene.build(minmax);
        for (uint32_t seed = 0; seed < 4; ++seed) {
          const std::vector<float> q = scene.random_query(seed);
          const auto scores = scene.score(minmax, q, 20);
          for (uint32_t h = 0; h < 4; ++h) {
            for (uint32_t b = 0; b < 20; ++b) {
              for (const auto& k : scene.keys[b][h / 2]) {
                CHECK(scores[h][b] >= dot(q.data() + h * 64, k) - 1e-6 * scale * 64);
              }
            }
          }
        }
        // One-element queries: there is no sum that could hide a bound rounded inwards.
        for (uint32_t d = 0; d < 64; ++d) {
          for (const float sign : {1.0f, -1.0f}) {
            std::vector<float> unit(64);
            unit[d] = sign;
            const auto scores = scene.score(minmax, one_group(unit), 20);
            for (uint32_t b = 0; b < 20; ++b) {
              for (const auto& k : scene.keys[b][0]) CHECK(scores[0][b] >= sign * k[d]);
            }
          }
        }
      }
    }
  }

  TEST_CASE("a block fed in pieces has the record of one fed at once") {
    for (const std::string name : {"mean", "max", "minmax", "fixed"}) {
      CAPTURE(name);
      std::mt19937 random(6);
      std::normal_distribution<double> normal;
      Scene scene(KVASIR_DTYPE_F16, 16, 16);
      for (int b = 0; b < 6; ++b) {
        scene.add_block(16, [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
      }
      FakeHost host;
      Representative at_once(host, name), in_pieces(host, name);
      scene.build(at_once);
      const auto whole = scene.slab.records();
      scene.prepare(in_pieces);
      for (uint32_t b = 0; b < 6; ++b) {
        scene.update(in_pieces, {scene.item(b, 0, 5, KVASIR_ITEM_NEW)});
        scene.update(in_pieces, {scene.item(b, 5, 10, KVASIR_ITEM_NEW)});
        scene.update(in_pieces, {scene.item(b, 15, 1, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
        scene.update(in_pieces, {scene.item(b, 16, 0, KVASIR_ITEM_FINAL)});
      }
      CHECK(scene.slab.records() == whole);
    }
  }

  TEST_CASE("listed candidates score like the range, without a record below all others") {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    Scene scene(KVASIR_DTYPE_F16, 64, 16);
    for (int b = 0; b < 700; ++b) {  // more than one task per head
      scene.add_block(16, [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
    }
    FakeHost host(4);
    Representative mean(host, "mean");
    scene.build(mean);
    const std::vector<float> q = scene.random_query(9);
    const auto all = scene.score(mean, q, 700);

    for (const uint32_t scope : {KVASIR_SCOPE_SEQUENCE, KVASIR_SCOPE_KV_HEAD}) {
      const uint32_t n_lists = scope == KVASIR_SCOPE_SEQUENCE ? 1 : 2;
      std::vector<std::vector<uint32_t>> lists;
      for (uint32_t i = 0; i < n_lists; ++i) {
        std::vector<uint32_t> blocks(700);
        for (uint32_t b = 0; b < 700; ++b) blocks[b] = b;
        std::shuffle(blocks.begin(), blocks.end(), random);
        std::sort(blocks.begin(), blocks.begin() + 300);
        lists.emplace_back(blocks.begin(), blocks.begin() + 300);
      }
      const SelectionBuffer list(KVASIR_UNIT_BLOCK, scope, lists);
      scene.step.candidates = &list.selection;
      const auto some = scene.score(mean, q, 300);
      for (uint32_t h = 0; h < 4; ++h) {
        const auto blocks = list.list(n_lists == 1 ? 0 : h / 2);
        for (size_t i = 0; i < 300; ++i) CHECK(some[h][i] == all[h][blocks[i]]);
      }
    }

    scene.step.candidates = nullptr;
    scene.slab.lose_page(1);
    const auto holes = scene.score(mean, q, 700);
    for (uint32_t b = 0; b < 700; ++b) {
      const bool hole = b / Slab::kPageBlocks == 1;
      CHECK(holes[2][b] == (hole ? std::numeric_limits<float>::lowest() : all[2][b]));
    }
  }

  TEST_CASE("summed scores are the sums of those of the query heads of each kv head") {
    struct Method {
      std::string name;
      OptionValues options;
    };
    const OptionValues three_by_max{{"representative_num", int64_t{3}}, {"combine", "max"}};
    const Method methods[] = {{"mean", {}},
                              {"max", {}},
                              {"minmax", {}},
                              {"minmax", {{"dtype", "q8_0"}}},
                              {"fixed", {}},
                              {"fixed", {{"representative_num", int64_t{3}}}},
                              {"dynamic", {}},
                              {"dynamic", {{"dtype", "q8_0"}}},
                              {"fixed", three_by_max},
                              {"dynamic", three_by_max}};
    for (const auto& [name, options] : methods) {
      CAPTURE(name);
      std::mt19937 random(7);
      std::normal_distribution<double> normal;
      Scene scene(KVASIR_DTYPE_F16, 32, 16);
      for (int b = 0; b < 300; ++b)
        scene.add_block(16, [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
      FakeHost host(3);
      Representative plugin(host, name, options);
      CHECK((plugin->base.desc->provides & KVASIR_PROVIDE_SUMMED_SCORES) != 0);
      scene.build(plugin);
      scene.slab.lose_page(1);
      const std::vector<float> q = scene.random_query(9);
      const auto each = scene.score(plugin, q, 300);
      const auto summed = scene.score(plugin, q, 300, KVASIR_SCORE_SUMMED);
      REQUIRE(summed.size() == 2);
      for (uint32_t head = 0; head < 2; ++head)
        for (uint32_t b = 0; b < 300; ++b)
          if (b / Slab::kPageBlocks == 1)
            CHECK(summed[head][b] == std::numeric_limits<float>::lowest());
          else
            CHECK(summed[head][b] ==
                  doctest::Approx(double{each[2 * head][b]} + double{each[2 * head + 1][b]})
                      .epsilon(1e-4));
    }
  }

  TEST_CASE("a full block without keys, or a query of another shape, is refused") {
    Scene scene(KVASIR_DTYPE_F16, 8, 16);
    scene.add_block(16, [](uint32_t, uint32_t, uint32_t) { return 1.0; });
    FakeHost host(2);
    Representative mean(host, "mean");
    scene.prepare(mean);
    scene.leases[0].k = nullptr;
    const auto item = scene.item(0, 0, 16, KVASIR_ITEM_SEALED);
    CHECK(mean->update(mean.self(), &scene.step, &item, 1, sizeof item, mean.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(mean.text().find("block 0") != std::string::npos);
    kvasir_score_in in{};
    kvasir_score_out out{};
    CHECK(mean->score(mean.self(), &scene.step, &in, &out, mean.err()) == KVASIR_ERR_INVALID);
  }
}

}  // namespace
