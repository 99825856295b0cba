// Fakes that work on what others hand over: infllm over scores, its representative over mass,
// twilight over candidates. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/c_abi.h"

namespace {

using namespace kvasir::test::c_abi;
const std::string kDir = KVASIR_FAKES_DIR;

TEST_CASE("infllm: takes the best blocks of each head, and refuses rotated keys") {
  Host host;
  const auto f = format();
  auto g = geometry(f);
  Plugin<kvasir_selector> plugin(host, kDir + "fake_infllm.so", {{"topk", 2}, {"slice", 5}});
  CHECK(plugin.base().validate(plugin.self(), &g, plugin.err()) == KVASIR_ERR_INVALID);
  CHECK(plugin.text().find("unrotated") != std::string::npos);
  g.k_state = KVASIR_K_UNROTATED;
  REQUIRE(plugin.base().validate(plugin.self(), &g, plugin.err()) == KVASIR_OK);
  plugin.bind(g);
  kvasir_sel_limits limits{};
  REQUIRE(plugin->limits(plugin.self(), &limits, plugin.err()) == KVASIR_OK);
  CHECK(limits.flags == KVASIR_LIMIT_PREFILL_SELECT);
  CHECK(limits.prefill_slice_tokens == 5);
  CHECK(limits.pos_mode == KVASIR_POS_CONSTANT);
  CHECK(limits.pos_const == g.window_tokens - 1);

  const std::vector<float> scores = {1, 7, 7, 0, /* head 1 */ 3, 2, 9, 9};
  const uint64_t offsets[] = {0, 4, 8};
  Step step(KVASIR_P2, 40, 3, 7, 5);
  kvasir_sel_in in{};
  in.struct_size = sizeof in;
  Result result(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 8);
  CHECK(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) < 0);
  in.n_score_heads = 2;
  in.scores = scores.data();
  in.score_offsets = offsets;
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) == 0);
  CHECK(result.row(0) == std::vector<uint32_t>{4, 5});
  CHECK(result.row(1) == std::vector<uint32_t>{5, 6});
  CHECK(plugin.probe(0) == 1);
  CHECK(plugin.probe(2) == 5);
}

TEST_CASE("infllm_rep: mass decides which keys of a block stand for it once it is final") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  Plugin<kvasir_representative> plugin(host, kDir + "fake_infllm_rep.so", {{"repr_topk", 2}});
  plugin.bind(g);
  kvasir_layout layout{};
  layout.struct_size = sizeof layout;
  REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
  CHECK(layout.mass_part == KVASIR_PART_WINDOW);
  CHECK(layout.flags == KVASIR_LAYOUT_WANT_FINAL);
  const Keys keys(g, 12, 1);
  Slab slab(g, layout, 3);
  Step step(KVASIR_P3, 12, 1, 2);
  step.step.slab = slab.get();
  // Per query head, four tokens: two increments whose sum puts tokens 1 and 3 first.
  const std::vector<float> increments[] = {{1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0, 0},
                                           {0, 0, 1, 4, 0, 0, 1, 4, 0, 0, 1, 4, 0, 0, 1, 4}};
  for (const auto& mass : increments) {
    const kvasir_update_item item = {0, 1, 0, 0, 4, KVASIR_ITEM_MASS, &keys.leases[1], mass.data()};
    REQUIRE(plugin->update(plugin.self(), &step.step, &item, 1, sizeof item, plugin.err()) == 0);
  }
  const kvasir_update_item last = {0, 1, 0, 0, 4, KVASIR_ITEM_FINAL, &keys.leases[1], nullptr};
  REQUIRE(plugin->update(plugin.self(), &step.step, &last, 1, sizeof last, plugin.err()) == 0);

  auto q = random_floats(4 * 8, 3);
  const kvasir_score_in in = {sizeof in, 0, query_view(g, q)};
  const uint64_t offsets[] = {0, 1, 2, 3, 4};
  float value[4] = {};
  kvasir_score_out out = {sizeof out, 0, offsets, value};
  REQUIRE(plugin->score(plugin.self(), &step.step, &in, &out, plugin.err()) == KVASIR_OK);
  for (uint32_t h = 0; h < 4; ++h) {
    double expected = 0;
    for (uint32_t d = 0; d < 8; ++d)
      expected += double{q[h * 8 + d]} * (keys.key(h / 2, 5, d) + keys.key(h / 2, 7, d)) / 2;
    CHECK(double{value[h]} == doctest::Approx(expected).epsilon(1e-5));
  }
  CHECK(plugin.probe(0) == 2);
  CHECK(plugin.probe(1) == 1);
  CHECK(plugin.probe(2) == 0);
}

// Rows of the first 16 tokens with even numbers, one per kv head.
struct Candidates {
  Candidates() {
    for (uint32_t head = 0; head < 2; ++head)
      for (uint32_t t = 0; t < 16; t += 2) index.push_back(t);
    selection.struct_size = sizeof selection;
    selection.unit = KVASIR_UNIT_TOKEN;
    selection.scope = KVASIR_SCOPE_KV_HEAD;
    selection.n_rows = 2;
    selection.row_offsets = offsets;
    selection.row_flags = flags;
    selection.index = index.data();
  }
  std::vector<uint32_t> index;
  uint64_t offsets[3] = {0, 8, 16};
  uint32_t flags[2] = {0, 0};
  kvasir_selection selection{};
};

TEST_CASE("twilight: keeps a subset of the candidates whose mass reaches p, more for larger p") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  const Keys keys(g, 20, 1);
  auto q = random_floats(4 * 8, 3);
  Candidates candidates;
  std::vector<uint32_t> previous;
  for (double p : {0.0, 0.3, 0.7, 0.95, 1.0}) {
    Plugin<kvasir_selector> plugin(host, kDir + "fake_twilight.so", {{"p", p}});
    plugin.bind(g);
    kvasir_layout layout{};
    layout.struct_size = sizeof layout;
    REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
    Slab slab(g, layout, 5);
    Step step(KVASIR_D2, 20, 0, 16);
    step.step.slab = slab.get();
    step.step.candidates = &candidates.selection;
    for (uint32_t b = 0; b < 5; ++b) {
      const kvasir_update_item item = {
          0, b, 0, 4, 4, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED, &keys.leases[b], nullptr};
      REQUIRE(plugin->update(plugin.self(), &step.step, &item, 1, sizeof item, plugin.err()) == 0);
    }
    kvasir_sel_in in{};
    in.struct_size = sizeof in;
    in.q = query_view(g, q);
    Result result(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 64);
    REQUIRE(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) == 0);
    CHECK(violation(result.selection, 2, 0, 16) == "");
    for (uint32_t kv_head = 0; kv_head < 2; ++kv_head) {
      const auto row = result.row(kv_head);
      std::set<uint32_t> expected;  // fewest tokens per query head, from the true keys; the union
      for (uint32_t h = kv_head * 2; h < kv_head * 2 + 2; ++h) {
        std::vector<std::pair<double, uint32_t>> weights;
        double sum = 0;
        for (uint32_t t = 0; t < 16; t += 2) {
          double dot = 0;
          for (uint32_t d = 0; d < 8; ++d) dot += double{q[h * 8 + d]} * keys.key(kv_head, t, d);
          weights.emplace_back(std::exp(dot * double{g.softmax_scale}), t);
          sum += weights.back().first;
        }
        std::sort(weights.rbegin(), weights.rend());
        double reached = 0;
        for (size_t i = 0; i < weights.size() && reached < p * sum - 1e-9; ++i) {
          reached += weights[i].first;
          expected.insert(weights[i].second);
        }
      }
      CHECK(std::set<uint32_t>(row.begin(), row.end()) == expected);  // int8 changes nothing here
      for (uint32_t t : row) CHECK(t % 2 == 0);
    }
    const auto now = result.row(0);
    CHECK(std::includes(now.begin(), now.end(), previous.begin(), previous.end()));
    previous = now;
    if (p == 0.0) CHECK(now.empty());
    if (p == 1.0) CHECK(now.size() >= 7);
    CHECK(plugin.probe(0) == 1);
    CHECK(plugin.probe(1) == 0);
  }
}

}  // namespace
