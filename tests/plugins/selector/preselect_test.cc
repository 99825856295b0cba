// preselect: who votes for which block, what is kept, and what the layers take from the last one.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
using Votes = std::vector<float>;  // per token

constexpr uint32_t kAll = UINT32_MAX;  // LIST_ALL, in a list of its own

struct Prompt {
  uint32_t block_size = 4;
  uint32_t begin = 0, end = 3;  // candidate blocks
  uint32_t prompt_begin = 0, prompt_end = 16;
  uint64_t seq = 1;
};

Selector bound(const FakeHost& host, const OptionValues& options, uint32_t block_size = 4,
               uint32_t window = 4) {
  Selector selector(host, "preselect", options);
  REQUIRE_MESSAGE(selector.status() == KVASIR_OK, selector.text());
  kvasir_geometry geometry = small_geometry();
  geometry.n_layers = 4;
  geometry.block_size = block_size;
  geometry.window_tokens = window;
  selector.bind(geometry);
  const uint64_t seqs[] = {1, 9};
  REQUIRE(selector->base.seq_open(selector.self(), seqs, 2, selector.err()) == KVASIR_OK);
  return selector;
}

struct Call {
  kvasir_step_seq seq{};
  kvasir_step step{};
  Call(const Prompt& p, uint32_t layer) {
    seq.id = p.seq;
    seq.kv_len = seq.prompt_end = p.prompt_end;
    seq.prompt_begin = p.prompt_begin;
    seq.unit_begin = p.begin;
    seq.unit_end = p.end;
    step.struct_size = sizeof step;
    step.layer = layer;
    step.n_seqs = 1;
    step.seq_size = sizeof seq;
    step.seqs = &seq;
  }
};

// One list per head, every token listed.
void observe(Selector& selector, const Prompt& p, uint32_t layer, const std::vector<Votes>& heads) {
  const Call call(p, layer);
  std::vector<uint64_t> offsets{0};
  Votes value;
  for (const Votes& votes : heads) {
    value.insert(value.end(), votes.begin(), votes.end());
    offsets.push_back(value.size());
  }
  kvasir_mass mass{};
  mass.struct_size = sizeof mass;
  mass.unit = KVASIR_UNIT_TOKEN;
  mass.n_lists = static_cast<uint32_t>(heads.size());
  mass.list_offsets = offsets.data();
  mass.value = kvasir::sdk::host_view(value.data(), {value.size()});
  REQUIRE(selector->observe(selector.self(), &call.step, &mass, selector.err()) == KVASIR_OK);
}

std::vector<std::vector<uint32_t>> plan(Selector& selector, const Prompt& p, uint32_t layer,
                                        uint32_t n_heads = 1) {
  const Call call(p, layer);
  SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, n_heads, 400);
  REQUIRE(selector->evict_plan(selector.self(), &call.step, &out.selection, selector.err()) ==
          KVASIR_OK);
  REQUIRE(out.selection.n_lists == n_heads);
  CHECK(out.selection.scope == (n_heads == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD));
  std::vector<std::vector<uint32_t>> lists;
  for (uint32_t i = 0; i < n_heads; ++i) {
    lists.push_back(out.list(i));
    CHECK(std::is_sorted(lists.back().begin(), lists.back().end()));
    if (out.list_flags[i] == KVASIR_LIST_ALL) lists.back() = {kAll};
  }
  return lists;
}

std::vector<uint32_t> keep(const OptionValues& options, const Votes& votes, const Prompt& p = {}) {
  FakeHost host;
  Selector selector = bound(host, options, p.block_size);
  observe(selector, p, 2, {votes});
  return plan(selector, p, 2)[0];
}

using Blocks = std::vector<uint32_t>;
OptionValues count(int64_t blocks) { return {{"preselect_block_count", blocks}}; }
OptionValues with(OptionValues options, const std::string& key, int64_t value) {
  options[key] = value;
  return options;
}

TEST_SUITE("plugins/selector/preselect") {
  TEST_CASE("a quarter of a block on either side votes for the block: 9, 16, 5") {
    const Votes votes = {0, 0, 0, 8, 1, 1, 1, 1, 4, 0, 0, 0, 0, 0, 0, 0};
    CHECK(keep(count(1), votes) == Blocks{1});
    CHECK(keep(count(2), votes) == Blocks{0, 1});
    CHECK(keep(count(3), votes) == Blocks{kAll});
    CHECK(keep(with(count(1), "kernel_size", 2), votes) == Blocks{1});     // what half a block is
    CHECK(keep(with(count(1), "kernel_size", 1), votes) == Blocks{0});     // 8, 4, 4: nobody's vote
    CHECK(keep(with(count(2), "kernel_size", 1), votes) == Blocks{0, 1});  // but one's own; a tie
  }

  TEST_CASE("the sink votes for its neighbour, the window does not") {
    Prompt p;
    p.begin = 1;
    CHECK(keep(count(1), {0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 0, 0, 9, 9, 9, 9}, p) == Blocks{1});
    CHECK(keep(count(1), {0, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0, 9, 9, 9, 9}, p) == Blocks{2});
  }

  TEST_CASE("with blocks of one token and kernel_size 5 votes are pooled as SnapKV pools them") {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform;
    for (const int64_t kernel : {1, 5}) {
      Votes votes(64);
      for (float& vote : votes) vote = uniform(random);
      Prompt p;
      p.block_size = 1, p.end = 60, p.prompt_end = 64;
      std::vector<double> pooled;
      for (int t = 0; t < 60; ++t) {
        pooled.push_back(0);
        for (int i = t - int(kernel / 2); i <= t + int(kernel / 2); ++i)
          if (i >= 0 && i < 60) pooled.back() += double{votes[static_cast<size_t>(i)]};
      }
      Blocks order(60);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return pooled[a] > pooled[b]; });
      order.resize(20);
      std::sort(order.begin(), order.end());
      CHECK(keep(with(count(20), "kernel_size", kernel), votes, p) == order);
    }
  }

  TEST_CASE("votes of several chunks add up, another prompt starts anew") {
    FakeHost host;
    Selector selector = bound(host, count(1));
    Prompt p;
    observe(selector, p, 0, {{5, 0, 0, 0, 0, 0, 0, 0}});
    observe(selector, p, 0, {{0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0}});
    CHECK(plan(selector, p, 0)[0] == Blocks{0});
    observe(selector, p, 0, {{2, 0, 0, 0, 0, 3, 0, 0}});
    observe(selector, p, 0, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 4}});
    observe(selector, p, 0, {{3, 0, 0, 0, 0, 0, 0, 0, 0, 0}});
    CHECK(plan(selector, p, 0)[0] == Blocks{0});
    Prompt next = p;
    observe(selector, p, 0, {{9}});
    next.prompt_begin = 16, next.prompt_end = 20;
    observe(selector, next, 0, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 4}});
    CHECK(plan(selector, next, 0)[0] == Blocks{2});
  }

  TEST_CASE("every layer takes in what the last one ranks 2nd to 6th, in place of its weakest") {
    // Votes so that block b has rank_of[b] in a layer: 10 blocks of 4 tokens.
    const auto ranked = [](const Blocks& best_first) {
      Votes votes(44);
      for (size_t i = 0; i < best_first.size(); ++i)
        votes[best_first[i] * 4 + 1] = static_cast<float>(best_first.size() - i);
      return votes;
    };
    FakeHost host;
    for (const bool unite : {true, false}) {
      Selector selector = bound(host, with(count(4), "union_with_last_layer", unite));
      Prompt p;
      p.end = 10, p.prompt_end = 44;
      observe(selector, p, 0, {ranked({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
      observe(selector, p, 1, {ranked({9, 8, 7, 6, 5, 4, 3, 2, 1, 0})});
      observe(selector, p, 3, {ranked({5, 9, 4, 3, 0, 1, 2, 6, 7, 8})});  // layer 2 is dense
      // [0 1 2 3]: 9 for 3; 4 for 2; then 3 is missing: for 1.
      CHECK(plan(selector, p, 0)[0] == (unite ? Blocks{0, 3, 4, 9} : Blocks{0, 1, 2, 3}));
      // [9 8 7 6]: 9 is there; 4 for 7; 3 for 8.
      CHECK(plan(selector, p, 1)[0] == (unite ? Blocks{3, 4, 6, 9} : Blocks{6, 7, 8, 9}));
      CHECK(plan(selector, p, 3)[0] == Blocks{3, 4, 5, 9});
      CHECK(plan(selector, p, 3)[0] == Blocks{kAll});  // the votes are gone
    }
    Selector wide = bound(host, count(8));
    Prompt p;
    p.end = 20, p.prompt_end = 84;
    Votes first(84), last(84);
    for (uint32_t i = 0; i < 8; ++i) first[i * 4 + 1] = last[(10 + i) * 4 + 1] = 8.0f - float(i);
    observe(wide, p, 0, {first});
    observe(wide, p, 1, {last});
    CHECK(plan(wide, p, 0)[0] == Blocks{0, 1, 2, 11, 12, 13, 14, 15});  // five, not its best
  }

  TEST_CASE("one choice for all heads, or one per kv head; a fork has its parent's votes") {
    FakeHost host;
    Selector selector = bound(host, {{"preselect_block_count", int64_t{1}},
                                     {"head_select_mode", std::string("separate")}});
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
    CHECK(limits.scope == KVASIR_SCOPE_KV_HEAD);
    CHECK(limits.mass.reduce == KVASIR_MASS_SUM_KV_HEAD);
    Prompt p;
    observe(selector, p, 0, {{0, 1}, {0, 0, 0, 0, 0, 1}});
    const uint64_t parent = 1, child = 7;
    REQUIRE(selector->base.seq_fork(selector.self(), &parent, &child, 1, selector.err()) ==
            KVASIR_OK);
    const std::vector<Blocks> want = {{0}, {1}};
    CHECK(plan(selector, p, 0, 2) == want);
    p.seq = 7;
    CHECK(plan(selector, p, 0, 2) == want);
    p.seq = 9;
    CHECK(plan(selector, p, 0, 2) == std::vector<Blocks>{{kAll}, {kAll}});  // nobody voted
  }

  TEST_CASE("what is kept is chosen among the candidates that still live") {
    FakeHost host;
    Selector selector = bound(host, count(2));
    Prompt p;
    p.end = 6, p.prompt_end = 28;
    observe(selector, p, 0, {{9, 0, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 4}});
    const SelectionBuffer live(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, {{2, 4, 5}});
    Call call(p, 0);
    call.step.candidates = &live.selection;
    SelectionBuffer out(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 1);
    CHECK(selector->evict_plan(selector.self(), &call.step, &out.selection, selector.err()) ==
          KVASIR_ERR_CAPACITY);
    CHECK(out.selection.needed == 2);
    SelectionBuffer enough(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 2);
    REQUIRE(selector->evict_plan(selector.self(), &call.step, &enough.selection, selector.err()) ==
            KVASIR_OK);
    CHECK(enough.list(0) == Blocks{2, 4});
  }

  TEST_CASE("limits follow the options; contradictions are refused by name") {
    FakeHost host;
    const auto limits_of = [&](const OptionValues& options) {
      Selector selector = bound(host, options, 4, 8);
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      CHECK(limits.unit == KVASIR_UNIT_BLOCK);
      return limits;
    };
    const kvasir_sel_limits on = limits_of(count(17));
    CHECK(on.max_units == 17);
    CHECK(on.plans.action == KVASIR_ACTION_RESTRICT);
    CHECK(on.plans.at == KVASIR_PLAN_AT_PROMPT_END);
    CHECK(on.mass.last_queries == 128);
    CHECK(on.mass.reduce == KVASIR_MASS_SUM_ALL);
    CHECK(limits_of({{"budget_tokens", int64_t{35}}}).max_units == 8);
    CHECK(limits_of({{"max_capacity_prompt", int64_t{40}}}).max_units == 8);
    const kvasir_sel_limits off = limits_of({{"preselect_block", int64_t{0}}});
    CHECK(off.plans.at == 0);
    CHECK(off.mass.at == 0);
    CHECK(are_alternatives(host, "preselect",
                           {"preselect_block_count", "budget_tokens", "max_capacity_prompt"}));
    kvasir_geometry geometry = small_geometry();
    geometry.sink_tokens = 4;
    geometry.window_tokens = 8;
    Selector little(host, "preselect", {{"max_capacity_prompt", int64_t{15}}});
    CHECK(little->base.validate(little.self(), &geometry, little.err()) == KVASIR_ERR_INVALID);
    CHECK(little.text().find("max_capacity_prompt leaves 3 tokens") != std::string::npos);
    Selector none(host, "preselect", {{"max_capacity_prompt", int64_t{11}}});
    CHECK(none->base.validate(none.self(), &geometry, none.err()) == KVASIR_ERR_INVALID);
    CHECK(none.text().find("max_capacity_prompt = 11 is less than sink_tokens") !=
          std::string::npos);
    kvasir_geometry shared = geometry;
    shared.head_select_shared = 1;
    Selector separate(host, "preselect", {{"head_select_mode", std::string("separate")}});
    CHECK(separate->base.validate(separate.self(), &shared, separate.err()) == KVASIR_ERR_INVALID);
  }
}

}  // namespace
