// Attention mass as selectors receive it, and what their plans do: against a forward pass in double
// precision that keeps its own sums and its own list of the living.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSink = 4, kWindow = 8;
std::string cache(uint32_t chunk, uint32_t block = 8) {
  return "[cache]\nblock_size = " + std::to_string(block) +
         "\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = " + std::to_string(chunk) + "\n";
}

// The n largest of value over `among`, ascending; ties: the lower token. `margin`: how clear the
// choice was, relative to the largest.
std::vector<uint32_t> top(const std::vector<double>& value, const std::vector<uint32_t>& among,
                          size_t n, double* margin) {
  auto order = among;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return value[a] > value[b]; });
  if (order.size() > n && n > 0)
    *margin = std::min(*margin, (value[order[n - 1]] - value[order[n]]) / value[order[0]]);
  if (order.size() > n) order.resize(n);
  std::sort(order.begin(), order.end());
  return order;
}

// H2O restated: sums of probabilities per kv head, and who still lives.
struct HeavyHitters {
  const TinyModel& tiny;
  uint32_t group, n_kv_heads, hh_size;
  TokenForward forward{tiny};
  std::vector<std::vector<std::vector<double>>> sum;      // [layer][kv_head][token]
  std::vector<std::vector<std::vector<uint32_t>>> alive;  // [layer][kv_head]
  double margin = 1.0;

  HeavyHitters(const TinyModel& of, uint32_t kv_heads, uint32_t hh)
      : tiny(of), group(8 / kv_heads), n_kv_heads(kv_heads), hh_size(hh) {
    sum.assign(3, std::vector<std::vector<double>>(kv_heads, std::vector<double>(500)));
    alive.assign(3, std::vector<std::vector<uint32_t>>(kv_heads));
  }
  std::vector<float> step(TokenId token) {
    const uint32_t pos = forward.n_tokens();
    for (auto& layer : alive)
      for (auto& head : layer) head.push_back(pos);
    const auto logits = forward.step(token, [&](uint32_t layer, uint32_t, uint32_t q_head) {
      std::vector<TokenForward::Key> keys;
      for (const uint32_t t : alive[layer][q_head / group]) keys.push_back({t});
      return keys;
    });
    for (uint32_t layer = 0; layer < 3; ++layer)
      for (uint32_t h = 0; h < 8; ++h)
        for (const auto& [t, p] : forward.mass(layer, h)) sum[layer][h / group][t] += p;
    return logits;
  }
  void evict() {
    const uint32_t n = forward.n_tokens();
    for (uint32_t layer = 0; layer < 3; ++layer)
      for (uint32_t head = 0; head < n_kv_heads; ++head) {
        std::vector<uint32_t> candidates, kept;
        for (const uint32_t t : alive[layer][head])
          (t >= kSink && t + kWindow < n ? candidates : kept).push_back(t);
        for (const uint32_t t : top(sum[layer][head], candidates, hh_size, &margin))
          kept.push_back(t);
        std::sort(kept.begin(), kept.end());
        alive[layer][head] = kept;
      }
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/eviction");

TEST_CASE("H2O keeps what an oracle keeps, and never attends to what it lost") {
  for (const uint32_t n_kv_heads : {8u, 2u})
    for (const uint32_t chunk : {7u, 64u}) {
      if (few_cases() && (n_kv_heads == 8) != (chunk == 7)) continue;
      CAPTURE(n_kv_heads);
      CAPTURE(chunk);
      Bench bench(8, n_kv_heads);
      const auto engine =
          bench.engine(cache(chunk) + "[selector]\nplugin = 'kvasir.h2o'\nhh_size = 12\n" +
                       "[storage]\nplugin = 'kvasir.test.bad_storage'\n" + kRecording);
      Recording& book = recording_of(*engine);
      HeavyHitters oracle(bench.tiny, n_kv_heads, 12);
      const auto prompt = some_tokens(70, 2);
      std::vector<float> want;
      for (const TokenId token : prompt) want = oracle.step(token);
      oracle.evict();
      const auto seq = engine->open();
      CHECK(max_difference(prefill(*engine, seq, prompt), want) < 1e-4);
      book.armed = 1;
      for (uint32_t i = 0; i < 40; ++i) {
        CAPTURE(i);
        const auto token = static_cast<TokenId>(i * 7);
        want = oracle.step(token);
        CHECK(max_difference(decode(*engine, seq, token), want) < 1e-4);
        REQUIRE(book.runs.size() == 3);
        for (uint32_t layer = 0; layer < 3; ++layer)
          for (uint32_t head = 0; head < n_kv_heads; ++head)
            CHECK(attended(book.runs[layer], seq, head) == oracle.alive[layer][head]);
        book.runs.clear();
        oracle.evict();
      }
      CHECK(oracle.margin > 1e-6);  // no tie could excuse another choice
      // What lives below the window's block stands closed up, head by head; nothing else is held.
      const uint32_t end = (110 - kWindow) / 8 * 8;
      uint64_t closed_up = 0;
      for (uint32_t layer = 0; layer < 3; ++layer)
        for (const auto& head : oracle.alive[layer])
          closed_up += static_cast<uint64_t>(std::count_if(head.begin(), head.end(),
                                                           [&](uint32_t t) { return t < end; }) +
                                             7) /
                       8;
      const uint64_t open = 3 * ((110 - end + 7) / 8);
      CHECK(probe(*engine->pipeline().storage, 0) == closed_up + open);
      const uint64_t head_block = 2 * 8 * 16 * sizeof(float);  // K and V of 8 tokens of one head
      CHECK(engine->kv_bytes(seq) == (closed_up + open * n_kv_heads) * head_block);
      CHECK(closed_up + open * n_kv_heads < 3 * 14 * n_kv_heads / 2);
      engine->close(seq);
      CHECK(probe(*engine->pipeline().storage, 0) == 0);
      CHECK(probe(*engine->pipeline().storage, 1) == 0);
    }
}

TEST_CASE("evicted is for good: forks inherit it, the next prompt does not bring it back") {
  Bench bench(8, 2);
  const auto engine =
      bench.engine(cache(16) + "[selector]\nplugin = 'kvasir.h2o'\nhh_size = 12\n" + kRecording);
  Recording& book = recording_of(*engine);
  const auto a = engine->open();
  prefill(*engine, a, some_tokens(70, 2));
  const auto b = engine->fork(a);
  book.armed = 1;
  decode(*engine, a, 5);
  const auto lost_in = [&](uint32_t run) { return attended(book.runs[run], a, 0); };
  const auto alive = lost_in(1);
  CHECK(alive.size() == 4 + 12 + 8 + 1);
  book.runs.clear();
  decode(*engine, b, 5);
  CHECK(attended(book.runs[1], b, 0) == alive);
  book.runs.clear();
  prefill(*engine, b, some_tokens(20, 3));
  for (uint32_t i = 0; i < book.runs.size(); ++i) {
    if (book.runs[i].layer != 1) continue;
    for (const uint32_t t : attended(book.runs[i], b, 0))
      CHECK((t >= 70 || std::binary_search(alive.begin(), alive.end(), t)));
  }
  CHECK_THROWS_WITH_AS(engine->truncate(a, 10), doctest::Contains("evicted"), Error);
}

TEST_CASE(
    "SnapKV: votes of the last queries, pooled; restricted until the next prompt or evicted") {
  constexpr uint32_t kPrompt = 75, kVoters = 6, kCapacity = 14, kPool = 5;
  for (const bool evict : {false, true})
    for (const uint32_t chunk : {4u, 20u, 128u}) {  // the voters span chunks, or not
      if (few_cases() && chunk != 4) continue;
      CAPTURE(evict);
      CAPTURE(chunk);
      Bench bench(8, 2);
      const auto engine =
          bench.engine(cache(chunk) + "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 14\n" +
                       "window_size = 6\nkernel_size = 5\nmode = '" +
                       (evict ? "evict" : "retrieve") + "'\n" + kRecording);
      Recording& book = recording_of(*engine);
      const auto prompt = some_tokens(kPrompt, 6);
      TokenForward forward(bench.tiny);
      std::vector<std::vector<std::vector<double>>> votes(
          3, std::vector<std::vector<double>>(2, std::vector<double>(kPrompt)));
      std::vector<float> want;
      for (uint32_t pos = 0; pos < kPrompt; ++pos) {
        want =
            forward.step(prompt[pos], [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
        if (pos + kVoters < kPrompt) continue;
        for (uint32_t layer = 0; layer < 3; ++layer)
          for (uint32_t h = 0; h < 8; ++h)
            for (const auto& [t, p] : forward.mass(layer, h)) votes[layer][h / 4][t] += p;
      }
      const auto seq = engine->open();
      CHECK(max_difference(prefill(*engine, seq, prompt), want) < 1e-4);
      double margin = 1.0;
      std::vector<std::vector<std::vector<uint32_t>>> kept(3);
      for (uint32_t layer = 0; layer < 3; ++layer) {
        const auto candidates = between(kSink, kPrompt - kWindow);
        for (uint32_t head = 0; head < 2; ++head) {
          std::vector<double> pooled(kPrompt);
          for (const uint32_t t : candidates)
            for (uint32_t u = t - std::min(t, kPool / 2); u <= t + kPool / 2; ++u)
              if (u < kPrompt - kWindow) pooled[t] += votes[layer][head][u];
          kept[layer].push_back(top(pooled, candidates, kCapacity, &margin));
        }
      }
      CHECK(margin > 1e-6);
      const auto must = [&](uint32_t layer, uint32_t head, uint32_t n) {
        auto tokens = up_to(kSink);
        tokens.insert(tokens.end(), kept[layer][head].begin(), kept[layer][head].end());
        for (uint32_t t = kPrompt - kWindow; t < n; ++t) tokens.push_back(t);
        return tokens;
      };
      book.armed = 1;
      for (uint32_t i = 0; i < 20; ++i) {
        CAPTURE(i);
        const auto token = static_cast<TokenId>(i * 3);
        want = forward.step(token, [&](uint32_t layer, uint32_t pos, uint32_t h) {
          std::vector<TokenForward::Key> keys;
          for (const uint32_t t : must(layer, h / 4, pos + 1)) keys.push_back({t});
          return keys;
        });
        CHECK(max_difference(decode(*engine, seq, token), want) < 1e-4);
        for (uint32_t layer = 0; layer < 3; ++layer)
          for (uint32_t head = 0; head < 2; ++head)
            CHECK(attended(book.runs[layer], seq, head) == must(layer, head, kPrompt + i + 1));
        book.runs.clear();
      }
      prefill(*engine, seq, some_tokens(8, 7));  // the next turn
      for (uint32_t i = 0; i < book.runs.size(); ++i) {
        const uint32_t n = book.runs[i].ranges[0].kv_len;
        CHECK(attended(book.runs[i], seq, 1) ==
              (evict ? must(book.runs[i].layer, 1, n) : up_to(n)));
      }
    }
}

TEST_CASE("mass as it is handed over: units, reductions, how many queries") {
  constexpr uint32_t kPrompt = 30;
  for (const uint32_t n_queries : {0u, 3u})
    for (const uint32_t reduce :
         {KVASIR_MASS_PER_Q_HEAD, KVASIR_MASS_SUM_KV_HEAD, KVASIR_MASS_SUM_ALL})
      for (const uint32_t level : {KVASIR_MASS_LISTS, KVASIR_MASS_BLOCK, KVASIR_MASS_TOKEN}) {
        if (few_cases() && (reduce == KVASIR_MASS_SUM_KV_HEAD) != (n_queries == 0)) continue;
        CAPTURE(n_queries);
        CAPTURE(reduce);
        CAPTURE(level);
        Bench bench(8, 2);
        EngineOptions options;
        options.max_sequences = 2;
        const auto engine =
            bench.engine(cache(128) + "[selector]\nplugin = 'kvasir.test.told'\nunit = 'token'\n" +
                             "mass_level = " + std::to_string(level) +
                             "\nmass_reduce = " + std::to_string(reduce) +
                             "\nmass_queries = " + std::to_string(n_queries) + "\n",
                         options);
        Calls& told = calls_of(*engine);
        const auto prompt = some_tokens(kPrompt, 9);
        TokenForward forward(bench.tiny);
        const auto all = [](uint32_t, uint32_t p, uint32_t) { return everything(p); };
        // want[list][unit] of layer 2
        const uint32_t n_lists = reduce == KVASIR_MASS_PER_Q_HEAD    ? 8
                                 : reduce == KVASIR_MASS_SUM_KV_HEAD ? 2
                                                                     : 1;
        const uint32_t per = level == KVASIR_MASS_BLOCK ? 8 : 1;
        std::vector<std::map<uint32_t, double>> want(n_lists);
        const auto add = [&] {
          for (uint32_t h = 0; h < 8; ++h)
            for (const auto& [t, p] : forward.mass(2, h)) want[h * n_lists / 8][t / per] += p;
        };
        for (uint32_t pos = 0; pos < kPrompt; ++pos) {
          forward.step(prompt[pos], all);
          if (n_queries == 0 || pos + n_queries >= kPrompt) add();
        }
        const auto check = [&](const RecordedCall& call, uint32_t first_list) {
          for (uint32_t r = 0; r < n_lists; ++r) {
            const uint64_t begin = call.offsets[first_list + r],
                           end = call.offsets[first_list + r + 1];
            REQUIRE(end - begin == want[r].size());
            uint64_t i = begin;
            for (const auto& [unit, sum] : want[r]) {
              CHECK(call.index[i] == unit);
              if (level != KVASIR_MASS_LISTS)
                CHECK(call.value[i] == doctest::Approx(sum).epsilon(1e-4));
              ++i;
            }
          }
        };
        const auto last = [&]() -> const RecordedCall& {
          for (size_t i = told.size(); i-- > 0;)
            if (told[i].function == RecordedCall::kObserve && told[i].layer == 2) return told[i];
          throw std::runtime_error("observe() was not called");
        };
        const auto a = engine->open(), b = engine->open();
        prefill(*engine, a, prompt);
        CHECK(last().moment == KVASIR_MOMENT_ATTENDED);
        CHECK(last().seq[0].phase == KVASIR_PHASE_PREFILL);
        CHECK(last().n_queries == std::vector<uint32_t>{n_queries ? n_queries : kPrompt});
        REQUIRE(last().offsets.size() == n_lists + 1);
        check(last(), 0);
        prefill(*engine, b, prompt);
        const Engine::DecodeItem items[] = {{b, 77}, {a, 77}};
        std::vector<float> logits(600);
        engine->decode(items, logits);
        forward.step(77, all);
        for (auto& list : want) list.clear();
        add();
        CHECK(last().moment == KVASIR_MOMENT_ATTENDED);
        CHECK(last().seq[0].phase == KVASIR_PHASE_DECODE);
        CHECK(last().n_queries == std::vector<uint32_t>(last().seq.size(), 1));
        REQUIRE(last().offsets.size() == 2 * n_lists + 1);
        check(last(), 0);
        check(last(), n_lists);
      }
}
