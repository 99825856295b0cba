// block_topk, or the twin of it that KVASIR_TEST_SELECTOR names, against a stable sort: on ties,
// NaN, lists of candidates and small buffers.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <random>

#include "tests/plugins/selector/score_scene.h"
#include "tests/support/plugin_instance.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
#ifndef KVASIR_TEST_SELECTOR
#define KVASIR_TEST_SELECTOR "block_topk"
#endif
const std::string kSelector = KVASIR_TEST_SELECTOR;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Selector shared_selector(const FakeHost& host, int64_t blocks, const std::string& compat = "none") {
  Selector selector(host, kSelector, {{"budget_blocks", blocks}, {"compat", compat}});
  kvasir_geometry geometry = small_geometry();
  geometry.head_select_shared = 1;
  selector.bind(geometry);
  return selector;
}

// Candidates [begin, begin + scores.size()) of one sequence, one list for all heads.
std::vector<uint32_t> pick(int64_t k, uint32_t begin, const std::vector<float>& scores,
                           const std::string& compat = "none") {
  FakeHost host;
  Selector selector = shared_selector(host, k, compat);
  ScoreScene scene;
  const auto end = begin + static_cast<uint32_t>(scores.size());
  scene.add_seq(begin, end);
  scene.add_list(range(begin, end), scores);
  scene.finish();
  SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 64);
  REQUIRE(selector->select(selector.self(), &scene.step, &scene.in, &out.selection,
                           selector.err()) == KVASIR_OK);
  REQUIRE(out.selection.n_lists == 1);
  return out.list(0);
}

TEST_SUITE("plugins/selector") {
  TEST_CASE("equal scores go to the lower block") {
    CHECK(pick(1, 5, {7, 1, 1, 1, 7}) == std::vector<uint32_t>{5});  // blocks 5 and 9 tie
    CHECK(pick(2, 0, {1, 1, 1, 1}) == std::vector<uint32_t>{0, 1});
    CHECK(pick(1, 0, {-0.0f, 0.0f}) == std::vector<uint32_t>{0});
    CHECK(pick(1, 0, {0.0f, -0.0f}) == std::vector<uint32_t>{0});
  }

  TEST_CASE("KTransformers: equal scores go to the higher block") {
    const auto theirs = [](int64_t k, uint32_t begin, const std::vector<float>& scores) {
      return pick(k, begin, scores, "ktransformers");
    };
    CHECK(theirs(1, 5, {7, 1, 1, 1, 7}) == std::vector<uint32_t>{9});
    CHECK(theirs(2, 0, {1, 1, 1, 1}) == std::vector<uint32_t>{2, 3});
    CHECK(theirs(3, 2, {1, 2, 1, 3, 1}) == std::vector<uint32_t>{3, 5, 6});
    CHECK(theirs(1, 0, {-0.0f, 0.0f}) == std::vector<uint32_t>{1});
    CHECK(theirs(1, 0, {kNaN, -kInf, kNaN}) == std::vector<uint32_t>{1});
    CHECK(theirs(4, 3, {1, 2, 3}) == std::vector<uint32_t>{3, 4, 5});
    CHECK(theirs(4, 3, {}).empty());
  }

  TEST_CASE("NaN ranks below everything, minus infinity included") {
    CHECK(pick(1, 0, {kNaN, -kInf}) == std::vector<uint32_t>{1});
    CHECK(pick(2, 0, {-kNaN, -1e30f, kNaN, -kInf}) == std::vector<uint32_t>{1, 3});
    CHECK(pick(2, 0, {kNaN, -kNaN, kNaN}) == std::vector<uint32_t>{0, 1});
    CHECK(pick(2, 0, {1, kInf, 2}) == std::vector<uint32_t>{1, 2});
  }

  TEST_CASE("few candidates are all taken, none is no error") {
    CHECK(pick(4, 3, {1, 2, 3}) == std::vector<uint32_t>{3, 4, 5});
    CHECK(pick(4, 3, {1, 2, 3, 0}) == std::vector<uint32_t>{3, 4, 5, 6});
    CHECK(pick(4, 3, {}).empty());
  }

  TEST_CASE("every sequence and kv head gets the best of its own candidates") {
    std::mt19937 random(11);
    for (const uint32_t workers : {0u, 3u}) {
      for (const bool listed : {false, true}) {
        for (const uint32_t scope : {KVASIR_SCOPE_SEQUENCE, KVASIR_SCOPE_KV_HEAD}) {
          CAPTURE(workers);
          CAPTURE(listed);
          const bool higher_wins = random() % 2 == 0;
          FakeHost host(workers);
          Selector selector(
              host, kSelector,
              {{"budget_tokens", int64_t{16 * 7 + 15}}, {"compat", int64_t{higher_wins}}});
          selector.bind(small_geometry());  // 2 kv heads, blocks of 16: 7 blocks
          ScoreScene scene;
          std::vector<std::vector<uint32_t>> passed;
          for (uint32_t s = 0; s < 5; ++s) {
            const uint32_t begin = s, end = s + 60 * s;
            scene.add_seq(begin, end);
            std::vector<uint32_t> list;
            for (uint32_t head = 0; head < 2; ++head) {
              if (head == 0 || scope == KVASIR_SCOPE_KV_HEAD || !listed) {
                list.clear();
                for (uint32_t b = begin; b < end; ++b) {
                  if (!listed || random() % 3 == 0) list.push_back(b);
                }
                passed.push_back(list);
              }
              std::vector<float> scores;
              for (size_t i = 0; i < list.size(); ++i) {  // few values: many ties
                scores.push_back(static_cast<float>(static_cast<int>(random() % 9) - 4));
              }
              scene.add_list(list, scores);
            }
          }
          if (listed) scene.restrict_to(scope, passed);
          scene.finish();
          SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 10, 10 * 7);
          REQUIRE(selector->select(selector.self(), &scene.step, &scene.in, &out.selection,
                                   selector.err()) == KVASIR_OK);
          REQUIRE(out.selection.n_lists == 10);
          for (uint32_t i = 0; i < 10; ++i) {
            const std::vector<float> scores(
                scene.scores.begin() + static_cast<long>(scene.score_offsets[i]),
                scene.scores.begin() + static_cast<long>(scene.score_offsets[i + 1]));
            CHECK(out.list(i) == expected(scene.lists[i], scores, 7, higher_wins));
          }
        }
      }
    }
  }

  TEST_CASE("a buffer that is too small is left alone and the second call fits") {
    FakeHost host;
    Selector selector = shared_selector(host, 3);
    ScoreScene scene;
    scene.add_seq(0, 4);
    scene.add_seq(2, 4);
    scene.add_list(range(0, 4), {4, 3, 2, 1});
    scene.add_list(range(2, 4), {1, 2});
    scene.finish();
    SelectionBuffer small(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 2, 4);
    REQUIRE(selector->select(selector.self(), &scene.step, &scene.in, &small.selection,
                             selector.err()) == KVASIR_ERR_CAPACITY);
    CHECK(small.selection.needed == 5);
    CHECK(!selector.text().empty());
    CHECK(small.selection.n_lists == 0);
    CHECK(small.list_offsets == std::vector<uint64_t>(3, 0xdead));
    CHECK(small.index == std::vector(small.index.size(), SelectionBuffer::kUnwritten));
    SelectionBuffer enough(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 2, small.selection.needed);
    REQUIRE(selector->select(selector.self(), &scene.step, &scene.in, &enough.selection,
                             selector.err()) == KVASIR_OK);
    CHECK(enough.list(0) == std::vector<uint32_t>{0, 1, 2});
    CHECK(enough.list(1) == std::vector<uint32_t>{2, 3});
  }

  TEST_CASE("scores that do not fit the candidates are refused") {
    FakeHost host;
    Selector selector = shared_selector(host, 3);
    ScoreScene scene;
    scene.add_seq(0, 5);
    scene.add_list(range(0, 4), {4, 3, 2, 1});
    scene.finish();
    SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
    CHECK(selector->select(selector.self(), &scene.step, &scene.in, &out.selection,
                           selector.err()) == KVASIR_ERR_INVALID);
  }

  TEST_CASE("limits follow the budget and the mode") {
    FakeHost host;
    Selector tokens(host, kSelector, {{"budget_tokens", int64_t{100}}});
    tokens.bind(small_geometry());
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(tokens->limits(tokens.self(), &limits, tokens.err()) == KVASIR_OK);
    CHECK(limits.max_units == 6);
    CHECK(limits.scope == KVASIR_SCOPE_KV_HEAD);
    CHECK(limits.unit == KVASIR_UNIT_BLOCK);
    Selector blocks = shared_selector(host, 96);
    limits = blank_limits();
    REQUIRE(blocks->limits(blocks.self(), &limits, blocks.err()) == KVASIR_OK);
    CHECK(limits.max_units == 96);
    CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
  }

  TEST_CASE("one of two budgets decides; less than a block is refused by name") {
    FakeHost host;
    CHECK(are_alternatives(host, kSelector, {"budget_tokens", "budget_blocks"}));
    Selector little(host, kSelector, {{"budget_tokens", int64_t{15}}});
    const kvasir_geometry geometry = small_geometry();
    CHECK(little->base.validate(little.self(), &geometry, little.err()) == KVASIR_ERR_INVALID);
    CHECK(little.text().find("block_size = 16") != std::string::npos);
  }
}

}  // namespace
