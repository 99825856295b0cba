// Coarse copies of records: the best scores are those that every record read would give, and no
// other one is as high.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include "tests/plugins/representative/scene.h"

namespace {
using namespace kvasir::test;

constexpr uint32_t kSummed = KVASIR_SCORE_SUMMED;

std::vector<size_t> best_of(const std::vector<float>& score, size_t n) {
  std::vector<size_t> order(score.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] > score[b]; });
  order.resize(n);
  return order;
}

void check_same_best(const std::vector<std::vector<float>>& every,
                     const std::vector<std::vector<float>>& best, uint32_t n_best) {
  REQUIRE(every.size() == best.size());
  for (size_t head = 0; head < every.size(); ++head) {
    const std::vector<size_t> want = best_of(every[head], n_best);
    CHECK(best_of(best[head], n_best) == want);
    const float least = every[head][want.back()];
    for (size_t i = 0; i < every[head].size(); ++i) {
      if (every[head][i] >= least)
        CHECK(best[head][i] == every[head][i]);
      else
        CHECK(best[head][i] < least);
    }
  }
}

// Pages of 16 blocks; keys of a channel lie about a value of their own.
struct LongScene : Scene {
  std::mt19937 random;
  std::normal_distribution<double> normal;

  LongScene(uint32_t head_dim, uint32_t n, uint32_t seed)
      : Scene(KVASIR_DTYPE_F16, head_dim, 4), random(seed) {
    geometry.page_blocks = 16;
    for (uint32_t b = 0; b < n; ++b) add_block(4, draw());
  }
  std::function<double(uint32_t, uint32_t, uint32_t)> draw(double scale = 1.0) {
    return [this, scale](uint32_t head, uint32_t, uint32_t d) {
      return scale * (3.0 * std::sin(7.0 * head + 2.0 * d) + normal(random));
    };
  }
  // Returns the bytes that the best n_best of n took.
  uint64_t check_best(Representative& plugin, const std::vector<float>& q, size_t n,
                      uint32_t n_best, uint32_t flags = kSummed) {
    const auto every = score(plugin, q, n, flags);
    const auto best = score(plugin, q, n, flags, n_best);
    check_same_best(every, best, n_best);
    return bytes_read;
  }
};

}  // namespace

TEST_SUITE("plugins/representative/coarse_first") {
  TEST_CASE("the n_best highest scores are exact, and all others lower") {
    FakeHost host;
    for (const std::string name : {"minmax", "mean"})
      for (const std::string type : {"f32", "f16", "q8_0"})
        for (const uint32_t head_dim : {5u, 32u, 96u}) {
          if (type == "q8_0" && head_dim % 32 != 0) continue;
          CAPTURE(name);
          CAPTURE(type);
          CAPTURE(head_dim);
          LongScene scene(head_dim, 150, head_dim);  // nine pages and six blocks
          Representative plugin(host, name, {{"dtype", type}});
          scene.build(plugin);
          CHECK(scene.layout.page_bytes != 0);
          CHECK(scene.layout.page_bytes % 64 == 0);
          for (const uint32_t n_best : {1u, 5u, 20u, 37u, 38u, 150u, 400u}) {
            CAPTURE(n_best);
            const auto q = scene.random_query(n_best);
            const auto every = scene.score(plugin, q, 150, kSummed);
            const auto best = scene.score(plugin, q, 150, kSummed, n_best);
            if (n_best > 37) {  // more than a quarter: every record is read
              CHECK(best == every);
              CHECK(scene.bytes_read == 0);
              continue;
            }
            check_same_best(every, best, n_best);
            CHECK(scene.bytes_read >= uint64_t{2} * n_best * scene.layout.record_bytes);
            if (type == "f32" && head_dim == 96 && n_best == 1)
              CHECK(scene.bytes_read < uint64_t{150} * scene.layout.record_bytes);
          }
        }
  }

  TEST_CASE("without coarse_first, and where every score counts, every record is read") {
    FakeHost host;
    LongScene scene(32, 100, 1);
    const auto q = scene.random_query(2);
    Representative without(host, "minmax", {{"coarse_first", int64_t{0}}});
    scene.build(without);
    CHECK(scene.layout.page_bytes == 0);
    const auto every = scene.score(without, q, 100, kSummed);
    CHECK(scene.score(without, q, 100, kSummed, 5) == every);
    Representative with(host, "minmax");
    scene.build(with);
    CHECK(scene.score(with, q, 100, kSummed) == every);
    // Of query heads, whose scores are put together afterwards, too.
    CHECK(scene.score(with, q, 100, 0, 5) == scene.score(with, q, 100));
  }

  TEST_CASE("one query head per kv head needs no sum") {
    FakeHost host;
    LongScene scene(32, 100, 3);
    scene.geometry.n_q_heads = scene.geometry.n_kv_heads;
    Representative plugin(host, "mean");
    scene.build(plugin);
    const auto q = scene.random_query(4);
    scene.check_best(plugin, q, 100, 7, 0);
    CHECK(scene.bytes_read != 0);
  }

  TEST_CASE("candidates may be any blocks, with and without a page that has a copy") {
    FakeHost host;
    LongScene scene(64, 150, 5);
    Representative plugin(host, "minmax");
    scene.build(plugin);
    const auto q = scene.random_query(6);
    for (const uint32_t every_nth : {1u, 2u, 3u, 7u}) {
      std::vector<uint32_t> index[2];  // of both kv heads; ascending
      for (uint32_t b = 3; b < 148; ++b)
        for (uint32_t head = 0; head < 2; ++head)
          if ((b + head) % every_nth == 0) index[head].push_back(b);
      const size_t n = std::min(index[0].size(), index[1].size());
      std::vector<uint32_t> both(index[0].begin(), index[0].begin() + static_cast<long>(n));
      both.insert(both.end(), index[1].begin(), index[1].begin() + static_cast<long>(n));
      uint64_t offsets[] = {0, n, 2 * n};
      kvasir_selection lists{};
      lists.struct_size = sizeof lists;
      lists.unit = KVASIR_UNIT_BLOCK;
      lists.scope = KVASIR_SCOPE_KV_HEAD;
      lists.n_lists = 2;
      lists.list_offsets = offsets;
      lists.index = both.data();
      scene.step.candidates = &lists;
      scene.check_best(plugin, q, n, 4);
      scene.step.candidates = nullptr;
    }
    scene.slab.lose_page(2);  // those blocks rank below all others
    scene.check_best(plugin, q, 150, 9);
  }

  TEST_CASE("copies of all kv heads are read together where lists are long") {
    const uint32_t n = 1200;
    for (const uint32_t workers : {1u, 2u}) {  // so that one takes kv heads together, two do not
      FakeHost host(workers);
      LongScene scene(32, n, 12);
      Representative plugin(host, "minmax");
      scene.build(plugin);
      for (const uint32_t seed : {13u, 14u, 15u, 16u, 17u, 18u})
        scene.check_best(plugin, scene.random_query(seed), n, 10);
      const auto q = scene.random_query(19);
      scene.check_best(plugin, q, n, 10);
      const uint64_t in_order = scene.bytes_read;
      for (const bool shared : {true, false}) {
        CAPTURE(shared);
        const uint32_t of_head = n - 61;
        // Head 0 lacks the last blocks, head 1 the first ones, and both one within a page.
        std::vector<uint32_t> index;
        for (uint32_t head = 0; head < (shared ? 1u : 2u); ++head)
          for (uint32_t b = 0; b < of_head; ++b) index.push_back(b + 60 * head + (b > 700));
        uint64_t offsets[] = {0, of_head, 2 * of_head};
        kvasir_selection lists{};
        lists.struct_size = sizeof lists;
        lists.unit = KVASIR_UNIT_BLOCK;
        lists.scope = shared ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD;
        lists.n_lists = shared ? 1 : 2;
        lists.list_offsets = offsets;
        lists.index = index.data();
        scene.step.candidates = &lists;
        scene.check_best(plugin, q, of_head, 10);
        scene.step.candidates = nullptr;
      }
      scene.slab.clear_page_parts(20);
      scene.slab.lose_page(40);
      scene.check_best(plugin, q, n, 10);
      CHECK(scene.bytes_read > in_order);
    }
  }

  TEST_CASE("equal scores are all exact or all below") {
    FakeHost host;
    LongScene scene(32, 0, 7);
    for (uint32_t b = 0; b < 96; ++b)
      scene.add_block(4, [&](uint32_t, uint32_t, uint32_t d) { return std::sin(d + b % 3); });
    Representative plugin(host, "minmax");
    scene.build(plugin);
    for (const uint32_t n_best : {1u, 10u, 24u}) {
      const auto q = scene.random_query(n_best);
      scene.check_best(plugin, q, 96, n_best);
    }
  }

  TEST_CASE(
      "a block that is built again renews the copy of its page, a page that is cut loses it") {
    FakeHost host;
    LongScene scene(32, 96, 8);
    Representative plugin(host, "minmax");
    scene.build(plugin);
    const auto q = scene.random_query(10);
    const uint32_t changed = 37;
    LongScene large(32, 0, 11);
    large.add_block(4, large.draw(1.5));
    scene.blocks[changed] = large.blocks[0];
    scene.leases[changed].k = scene.blocks[changed].data();
    scene.update(plugin, {scene.item(changed, 0, 4, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
    scene.check_best(plugin, q, 96, 6);
    const uint64_t with_all = scene.bytes_read;
    scene.slab.clear_page_parts(2);
    scene.check_best(plugin, q, 96, 6);
    CHECK(scene.bytes_read > with_all);  // the records of that page, and no copy of it
    // A block in its middle does not make a copy of a page that has none, its last one does.
    scene.update(plugin, {scene.item(changed, 0, 4, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
    scene.score(plugin, q, 96, kSummed, 6);
    CHECK(scene.bytes_read > with_all);
    scene.update(plugin, {scene.item(47, 0, 4, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
    scene.check_best(plugin, q, 96, 6);
    CHECK(scene.bytes_read == with_all);
  }

  TEST_CASE("a page whose records are not finite has no copy") {
    FakeHost host;
    LongScene scene(32, 64, 12);
    Representative plugin(host, "minmax", {{"dtype", std::string("f32")}});
    scene.build(plugin);
    const auto q = scene.random_query(13);
    const uint64_t whole = [&] {
      scene.score(plugin, q, 64, kSummed, 3);
      return scene.bytes_read;
    }();
    const uint16_t infinity = 0x7c00;
    std::memcpy(scene.blocks[20].data(), &infinity, sizeof infinity);
    scene.update(plugin, {scene.item(20, 0, 4, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
    const auto scores = scene.score(plugin, q, 64, kSummed, 3);
    CHECK(scene.bytes_read > whole);
    CHECK_FALSE(std::isfinite(scores[0][20]));  // for the host to see
  }
}
