// Forced ranges, candidates, the check of what a selector wrote, unions of query heads: pure
// functions against tables and plain restatements.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/index_lists.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "core/runtime/select/ascending.h"

namespace {
using namespace kvasir;

constexpr float kNot = -INFINITY;

CacheConfig config(uint32_t block, uint32_t sink, uint32_t window) {
  CacheConfig cache;
  cache.block_size.value = block;
  cache.sink_tokens.value = sink;
  cache.window_tokens.value = window;
  return cache;
}

// Two sequences of 2 kv heads and 4 query heads; candidates [2, 8) and the list {1, 4, 5} / {4, 6}.
struct Written {
  Candidates ranged, listed;
  ListBuffer lists;
  CheckContext context{2, 4, 2, UINT64_MAX, KVASIR_SCOPE_Q_HEAD, true};
  explicit Written(uint32_t scope = KVASIR_SCOPE_KV_HEAD) {
    ranged.begin = 2, ranged.end = 8;
    listed.begin = 1, listed.end = 7, listed.listed = true;
    listed.heads.resize(2);
    listed.heads[0].index = {1, 4, 5};
    listed.heads[1].index = {4, 6};
    lists.prepare(KVASIR_UNIT_BLOCK, scope, 0, 8, 32, 2, true);
  }
  void put(const std::vector<std::vector<uint32_t>>& written) {
    uint64_t at = 0;
    lists.offsets[0] = 0;
    for (size_t i = 0; i < written.size(); ++i) {
      for (const uint32_t unit : written[i]) lists.index[at++] = unit;
      lists.offsets[i + 1] = at;
    }
    lists.view.n_lists = static_cast<uint32_t>(written.size());
  }
  std::string fault() const { return check_selection(lists.view, context, {&ranged, &listed}); }
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/index_lists");

TEST_CASE("walks along a list and sets of units equal what a set of numbers says") {
  std::mt19937 engine(7);
  const auto random = [&] { return static_cast<uint32_t>(engine()); };
  for (int round = 0; round < 50; ++round) {
    const uint32_t begin = random() % 200, end = begin + 1 + random() % 400;
    std::set<uint32_t> all;
    std::vector<std::vector<uint32_t>> lists(3);
    for (auto& list : lists) {
      for (uint32_t unit = begin; unit < end; ++unit) {
        const bool in_run = unit / 16 % 3 == static_cast<uint32_t>(round) % 3;
        if (in_run || random() % 9 == 0) list.push_back(unit);
      }
      all.insert(list.begin(), list.end());
    }
    UnitSet set(begin, end);
    for (const auto& list : lists) set.add(list);
    const std::vector<uint32_t> units = set.units();
    REQUIRE(units == std::vector<uint32_t>(all.begin(), all.end()));
    for (size_t i = 0; i < units.size(); ++i) CHECK(set.place(units[i]) == i);
    const uint32_t* at = units.data();
    const uint32_t* const stop = at + units.size();
    for (uint32_t unit = begin; unit < end + 5; unit += 1 + random() % 7) {
      at = advance_to(at, stop, unit);
      CHECK(at == std::lower_bound(units.data(), stop, unit));
    }
  }
}

TEST_CASE("lists that are used again hold nothing of the call before") {
  ListBuffer lists;
  const auto is_preset = [&](uint64_t n, bool weights_allowed) {
    for (uint64_t i = 0; i < n; ++i)
      if (lists.view.index[i] != UINT32_MAX ||
          (weights_allowed && !(std::isnan(lists.view.log_weight[2 * i]) &&
                                std::isnan(lists.view.log_weight[2 * i + 1]))))
        return false;
    return lists.view.capacity == n && lists.view.list_offsets[0] == UINT64_MAX &&
           !lists.view.o.data && !lists.view.lse.data;
  };
  struct Call {
    uint64_t capacity;
    bool weights_allowed;
  };
  for (const Call call : {Call{20, true}, {16, true}, {40, false}, {40, true}, {8, false}}) {
    CAPTURE(call.capacity);
    lists.prepare(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 0, 2, call.capacity, 2,
                  call.weights_allowed);
    CHECK(is_preset(call.capacity, call.weights_allowed));
    lists.offer_contribution(1, 2, 4);
    CHECK(lists.view.o.data != nullptr);
    for (uint64_t i = 0; i < call.capacity; ++i) {
      lists.view.index[i] = 3;
      lists.view.log_weight[2 * i] = lists.view.log_weight[2 * i + 1] = 0.5f;
    }
    lists.view.list_offsets[0] = 0;
  }
}

TEST_CASE("the forced range by hand") {
  struct Case {
    uint32_t unit, block, sink, window, n, sink_end, window_begin;
  };
  const uint32_t kBlock = KVASIR_UNIT_BLOCK, kToken = KVASIR_UNIT_TOKEN;
  for (const Case& c : {Case{kToken, 16, 4, 64, 100, 4, 36},
                        {kToken, 16, 4, 64, 30, 0, 0},
                        {kToken, 16, 4, 64, 66, 2, 2},
                        {kToken, 16, 0, 0, 100, 0, 99},
                        {kToken, 16, 4, 0, 1, 0, 0},
                        {kBlock, 16, 4, 64, 100, 16, 32},
                        {kBlock, 16, 4, 64, 80, 16, 16},
                        {kBlock, 16, 4, 64, 79, 0, 0},
                        {kBlock, 16, 0, 0, 16, 0, 0},
                        {kBlock, 16, 0, 0, 17, 0, 16},
                        {kBlock, 16, 16, 16, 48, 16, 32},
                        {kBlock, 16, 17, 16, 100, 32, 80},
                        {kBlock, 128, 4, 64, 1000, 128, 896},
                        {kBlock, 1, 4, 64, 100, 4, 36},
                        {kBlock, 16, 64, 0, 20, 16, 16}}) {
    CAPTURE(c.unit);
    CAPTURE(c.n);
    CAPTURE(c.window);
    const ForcedRange got = forced_range(config(c.block, c.sink, c.window), c.unit, c.n, c.n);
    CHECK(got.sink_end == c.sink_end);
    CHECK(got.window_begin == c.window_begin);
  }
}

TEST_CASE("the forced range always holds sink, window and the current token") {
  for (const uint32_t block : {1u, 3u, 16u})
    for (const uint32_t sink : {0u, 4u, 20u})
      for (const uint32_t window : {0u, 1u, 33u})
        for (uint32_t n = 1; n < 90; ++n)
          for (const uint32_t unit : {KVASIR_UNIT_BLOCK, KVASIR_UNIT_TOKEN})
            for (const bool prompt_mode : {false, true}) {
              CacheConfig cache = config(block, sink, window);
              const uint32_t prompt_end = 40;
              if (prompt_mode) cache.window_mode.value = WindowMode::kPrompt;
              const ForcedRange f = forced_range(cache, unit, n, prompt_end);
              const auto forced = [&](uint32_t t) { return t < f.sink_end || t >= f.window_begin; };
              bool all = forced(n - 1);
              for (uint32_t t = 0; t < std::min(sink, n); ++t) all = all && forced(t);
              const uint32_t from = prompt_mode ? std::min(n, prompt_end) : n;
              for (uint32_t t = from > window ? from - window : 0; t < n; ++t)
                all = all && forced(t);
              CHECK(all);
              CHECK(f.sink_end <= f.window_begin);
              if (unit == KVASIR_UNIT_BLOCK) {
                CHECK(f.sink_end % block == 0);
                CHECK(f.window_begin % block == 0);
              }
            }
}

TEST_CASE("a prompt window grows and hands over in bulk") {
  CacheConfig cache = config(16, 0, 10);
  cache.window_mode.value = WindowMode::kPrompt;
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 100, 100).window_begin == 90);
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 150, 100).window_begin == 90);
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 50, 100).window_begin == 40);
  cache.window_flush_tokens.value = 20;
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 119, 100).window_begin == 90);
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 120, 100).window_begin == 110);
  CHECK(forced_range(cache, KVASIR_UNIT_TOKEN, 145, 100).window_begin == 130);
}

TEST_CASE("what a selector may not write") {
  struct Case {
    const char* says;
    std::function<void(Written&)> spoil;
  };
  const std::vector<std::vector<uint32_t>> good = {{2, 7}, {}, {1, 5}, {6}};
  {
    Written w;
    w.put(good);
    CHECK(w.fault() == "");
  }
  for (const Case& c : {
           Case{"expected 4", [](Written& w) { w.lists.view.n_lists = 3; }},
           {"expected 4", [](Written& w) { w.lists.view.n_lists = 5; }},
           {"scope", [](Written& w) { w.lists.view.scope = 3; }},
           {"scope", [](Written& w) { w.context.finest_scope = KVASIR_SCOPE_SEQUENCE; }},
           {"outside the candidate range", [](Written& w) { w.lists.index[0] = 1; }},
           {"outside the candidate range", [](Written& w) { w.lists.index[1] = 8; }},
           {"outside the candidate range", [](Written& w) { w.lists.index[1] = UINT32_MAX; }},
           {"ascending", [](Written& w) { w.lists.index[1] = 2; }},
           {"ascending", [](Written& w) { std::swap(w.lists.index[0], w.lists.index[1]); }},
           {"not among the candidates", [](Written& w) { w.lists.index[3] = 6; }},
           {"not among the candidates", [](Written& w) { w.lists.index[4] = 5; }},
           {"list_offsets", [](Written& w) { w.lists.offsets[0] = 1; }},
           {"list_offsets", [](Written& w) { w.lists.offsets[2] = 1; }},
           {"list_offsets", [](Written& w) { w.lists.offsets[4] = 33; }},
           {"list_offsets", [](Written& w) { w.lists.offsets[1] = UINT64_MAX; }},
           {"unknown list flag", [](Written& w) { w.lists.flags[1] = 4; }},
           {"lists indices although", [](Written& w) { w.lists.flags[0] = KVASIR_LIST_ALL; }},
           {"lists indices although", [](Written& w) { w.lists.flags[3] = KVASIR_LIST_FALLBACK; }},
           {"max_units", [](Written& w) { w.context.max_units = 1; }},
           {"exceed max_units 0", [](Written& w) { w.context.max_units = 0; }},
           {"weight", [](Written& w) { w.lists.view.weight_width = 3; }},
           {"weight",
            [](Written& w) {
              w.lists.view.weight_width = 1;
              w.context.weights_allowed = false;
            }},
           {"NaN",
            [](Written& w) {
              w.lists.view.weight_width = 2;
              w.lists.weight[9] = NAN;
            }},
           {"NaN or +inf",
            [](Written& w) {
              w.lists.view.weight_width = 1;
              w.lists.weight[0] = INFINITY;
            }},
       }) {
    Written w;
    w.put(good);
    c.spoil(w);
    const std::string fault = w.fault();
    CAPTURE(c.says);
    CAPTURE(fault);
    CHECK(fault.find(c.says) != std::string::npos);
  }
}

TEST_CASE("what a selector may write") {
  Written w(KVASIR_SCOPE_SEQUENCE);
  w.put({{2, 3, 4}, {1, 6}});  // 6 is live for head 1 only, 1 for head 0 only
  CHECK(w.fault() == "");
  Written weights;
  weights.put({{2}, {}, {}, {4}});
  weights.lists.view.weight_width = 2;
  weights.lists.weight = std::vector<float>(64, kNot);  // -inf is a weight
  weights.lists.view.log_weight = weights.lists.weight.data();
  CHECK(weights.fault() == "");
  Written flags;
  flags.put({{}, {}, {1}, {}});
  flags.lists.flags[0] = KVASIR_LIST_ALL;
  flags.lists.flags[1] = KVASIR_LIST_NONE;
  flags.lists.flags[3] = KVASIR_LIST_FALLBACK;
  CHECK(flags.fault() == "");
}

TEST_CASE("lists per query head become their union with one weight per head") {
  Written w(KVASIR_SCOPE_Q_HEAD);
  w.put({{2, 5}, {5, 7}, {}, {3}, {1}, {4}, {}, {6}});
  w.lists.view.weight_width = 1;
  for (size_t i = 0; i < 8; ++i) w.lists.weight[i] = -0.5f * static_cast<float>(i);
  CHECK(w.fault() == "");
  uint32_t width = 0;
  bool fallback = true;
  auto heads = heads_of(w.lists.view, 0, 4, 2, w.ranged, &width, &fallback);
  CHECK(width == 2);
  CHECK(!fallback);
  REQUIRE(heads.size() == 2);
  CHECK(heads[0].index == std::vector<uint32_t>{2, 5, 7});
  CHECK(heads[0].weight == std::vector<float>{0, kNot, -0.5f, -1.0f, kNot, -1.5f});
  CHECK(heads[1].index == std::vector<uint32_t>{3});
  CHECK(heads[1].weight == std::vector<float>{kNot, -2.0f});
  w.lists.flags[6] = KVASIR_LIST_ALL;  // head 2 of the second sequence: all it has, at weight 0
  heads = heads_of(w.lists.view, 1, 4, 2, w.listed, &width, &fallback);
  CHECK(heads[0].index == std::vector<uint32_t>{1, 4});
  CHECK(heads[1].index == std::vector<uint32_t>{4, 6});
  CHECK(heads[1].weight == std::vector<float>{0, kNot, 0, -3.5f});
  w.lists.flags[6] = KVASIR_LIST_FALLBACK;
  heads_of(w.lists.view, 1, 4, 2, w.listed, &width, &fallback);
  CHECK(fallback);
  heads_of(w.lists.view, 0, 4, 2, w.ranged, &width, &fallback);
  CHECK(!fallback);
}

TEST_CASE("candidates are what is live, reachable and not forced") {
  const uint32_t block = 4, heads = 2, n = 40;
  LayerState layer;
  layer.dead.assign(heads, std::vector<bool>(30));
  for (uint32_t t = 8; t < 12; ++t) layer.dead[0][t] = true;  // a whole block of head 0
  layer.dead[1][9] = layer.dead[1][20] = true;
  layer.restricted = {{0, 1, 2, 3, 5}, {2, 3, 4}};
  layer.restricted_end = 6;
  for (const uint32_t unit : {KVASIR_UNIT_BLOCK, KVASIR_UNIT_TOKEN}) {
    const ForcedRange forced{4, 32};
    const Candidates got = live_candidates(layer, unit, forced, block, heads);
    REQUIRE(got.listed);
    for (uint32_t head = 0; head < heads; ++head) {
      std::set<uint32_t> want;
      for (uint32_t t = forced.sink_end; t < forced.window_begin; ++t) {
        const auto& list = layer.restricted[head];
        const bool reachable =
            t / block >= 6 || std::find(list.begin(), list.end(), t / block) != list.end();
        if (reachable && !(t < 30 && layer.dead[head][t]))
          want.insert(unit == KVASIR_UNIT_BLOCK ? t / block : t);
      }
      CHECK(got.heads[head].index == std::vector<uint32_t>(want.begin(), want.end()));
    }
  }
  layer.restricted.clear();
  layer.live.resize(heads);
  for (uint32_t head = 0; head < heads; ++head)
    for (uint32_t t = 0; t < 30; ++t)
      if (!layer.dead[head][t]) layer.live[head].push_back(t);
  for (const uint32_t unit : {KVASIR_UNIT_BLOCK, KVASIR_UNIT_TOKEN}) {
    const Candidates got = live_candidates(layer, unit, {4, 32}, block, heads);
    for (uint32_t head = 0; head < heads; ++head) {
      std::set<uint32_t> want;
      for (uint32_t t = 4; t < 32; ++t)
        if (t >= 30 || !layer.dead[head][t]) want.insert(unit == KVASIR_UNIT_BLOCK ? t / block : t);
      CHECK(got.heads[head].index == std::vector<uint32_t>(want.begin(), want.end()));
    }
  }
  layer.dead.clear();
  layer.live.clear();
  const Candidates plain = live_candidates(layer, KVASIR_UNIT_TOKEN, {4, n - 8}, block, heads);
  CHECK(!plain.listed);
  CHECK(plain.begin == 4);
  CHECK(plain.end == 32);
  Candidates blocks = plain;
  blocks.listed = true;
  blocks.begin = 1, blocks.end = 8;
  blocks.heads.resize(2);
  blocks.heads[0].index = {3};
  const Candidates tokens = expand_to_tokens(blocks, block);
  CHECK(tokens.begin == 4);
  CHECK(tokens.end == 32);
  CHECK(tokens.heads[0].index == std::vector<uint32_t>{12, 13, 14, 15});
  CHECK(tokens.heads[1].index.empty());
  CHECK(tokens.heads[0].weight.empty());
}

TEST_CASE("tokens of a block weigh what the block weighs") {
  Candidates blocks;
  blocks.begin = 1;
  blocks.end = 8;
  blocks.listed = true;
  blocks.heads = {{.index = {3, 5}, .weight = {0.5f, 1.0f, 2.0f, 4.0f}}};  // two query heads
  const Candidates tokens = expand_to_tokens(blocks, 2);
  CHECK(tokens.heads[0].index == std::vector<uint32_t>{6, 7, 10, 11});
  CHECK(tokens.heads[0].weight ==
        std::vector<float>{0.5f, 1.0f, 0.5f, 1.0f, 2.0f, 4.0f, 2.0f, 4.0f});
}
