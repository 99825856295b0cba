// Selecting a layer ahead and blocks that must be fetched: the same numbers as with everything at
// hand, whatever the storage's pool, queue and delay; and nothing held afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/core/runtime/support.h"
#include "tests/plugins/selector/prescribed_run.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSink = 4, kWindow = 8, kCap = 13;
constexpr double kAlpha = 1.0;
constexpr double kHalfPrecision = 2e-3;  // of partial logits, relative to the best
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n";
const std::string kInfiniGen =
    "[selector]\nplugin = 'kvasir.infinigen'\npartial_weight_ratio = 1.0\ngqa_reduce = 'max'\n";
const std::string kCapped = kInfiniGen + "budget_tokens = 13\nalpha = 1.0\n";

std::string async(const std::string& options) {
  return "[storage]\nplugin = 'kvasir.test.async_storage'\n" + options;
}
enum Seen { kBlocks, kAbsent, kFetched, kLost, kSpilled, kLeases };
double seen(const Engine& engine, Seen what) { return probe(*engine.pipeline().storage, what); }

// Logits of the candidates by the query that the layer before speculates, largest over the group;
// by [kv head][token].
std::vector<std::map<uint32_t, double>> rehearse(const TokenForward& forward, uint32_t layer,
                                                 uint32_t n) {
  const auto q = forward.speculated_query(layer);
  std::vector<std::map<uint32_t, double>> out(2);
  for (uint32_t h = 0; h < 8; ++h)
    for (uint32_t t = kSink; t + kWindow < n; ++t) {
      double dot = 0;
      for (uint32_t d = 0; d < 16; ++d) dot += q[h][d] * forward.key(layer, h / 4, t)[d];
      const auto [at, fresh] = out[h / 4].emplace(t, dot / 4.0);
      if (!fresh) at->second = std::max(at->second, dot / 4.0);
    }
  return out;
}

// What was attended is sink, window and the best of the rehearsed logits: for all heads as many as
// lie within kAlpha of the best on average, at most kCap.
void check_choice(const std::vector<std::map<uint32_t, double>>& logits,
                  const std::vector<std::vector<uint32_t>>& attended, uint32_t n) {
  size_t fewest = 0, most = 0;
  for (uint32_t head = 0; head < 2; ++head) {
    double best = -INFINITY, worst_in = INFINITY, best_out = -INFINITY;
    for (const auto& [t, logit] : logits[head]) best = std::max(best, logit);
    const double slack = kHalfPrecision * std::max(1.0, std::abs(best));
    auto forced = up_to(kSink);
    for (uint32_t t = n - kWindow; t < n; ++t) forced.push_back(t);
    CHECK(
        std::includes(attended[head].begin(), attended[head].end(), forced.begin(), forced.end()));
    for (const auto& [t, logit] : logits[head]) {
      fewest += logit > best - kAlpha + slack;
      most += logit > best - kAlpha - slack;
      const bool is_in = std::binary_search(attended[head].begin(), attended[head].end(), t);
      (is_in ? worst_in : best_out) = is_in ? std::min(worst_in, logit) : std::max(best_out, logit);
    }
    CHECK(worst_in >= best_out - 2 * slack);
  }
  const size_t chosen = attended[0].size() - kSink - kWindow;
  CHECK(attended[1].size() == attended[0].size());
  CHECK(chosen >= std::clamp<size_t>(fewest / 2, 1, kCap));
  CHECK(chosen <= std::clamp<size_t>(most / 2, 1, kCap));
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/speculation");

TEST_CASE("InfiniGen: FINAL lists of a layer ahead are what that layer attends to") {
  for (const std::string& storage :
       {std::string(), async("pool_blocks = 6\n"), async("pool_blocks = 0\ndelay_us = 50\n")}) {
    CAPTURE(storage);
    Bench bench(8, 2);
    const auto engine =
        bench.engine(kCache + "dense_layers = [0]\n" + kCapped + storage + kRecording);
    Recording& book = recording_of(*engine);
    const auto prompt = some_tokens(100, 5);
    TokenForward forward(bench.tiny);
    for (const TokenId token : prompt)
      forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
    const auto seq = engine->open();
    prefill(*engine, seq, prompt);
    book.armed = 1;
    for (uint32_t i = 0; i < 15; ++i) {
      CAPTURE(i);
      const auto token = static_cast<TokenId>(i * 13);
      const auto got = decode(*engine, seq, token);
      REQUIRE(book.runs.size() == 3);
      std::vector<std::vector<std::vector<uint32_t>>> lists(3);
      for (uint32_t layer = 0; layer < 3; ++layer)
        for (uint32_t head = 0; head < 2; ++head)
          lists[layer].push_back(attended(book.runs[layer], seq, head));
      book.runs.clear();
      CHECK(lists[0][1] == up_to(100 + i + 1));
      const auto want = forward.step(token, [&](uint32_t layer, uint32_t pos, uint32_t h) {
        if (layer > 0 && h == 0)
          check_choice(rehearse(forward, layer, pos + 1), lists[layer], pos + 1);
        std::vector<TokenForward::Key> keys;
        for (const uint32_t t : lists[layer][h / 4]) keys.push_back({t});
        return keys;
      });
      CHECK(max_difference(got, want) < 1e-4);
    }
    CHECK(engine->decode_engagement().fallbacks == 0);
    if (storage.empty()) continue;
    CHECK(seen(*engine, kFetched) > 0);
    engine->close(seq);
    CHECK(seen(*engine, kBlocks) == 0);
    CHECK(seen(*engine, kLeases) == 0);
  }
}

TEST_CASE("who asks for it is given each layer's attention input, that many layers ahead") {
  for (const uint32_t ahead : {1u, 2u}) {
    CAPTURE(ahead);
    Bench bench(8, 2);
    const auto engine = bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.ahead'\nahead = " +
                                     std::to_string(ahead) + "\n");
    Calls& calls = calls_of(*engine);
    const auto prompt = some_tokens(60, 5);
    TokenForward forward(bench.tiny);
    for (const TokenId token : prompt)
      forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
    const auto seq = engine->open();
    prefill(*engine, seq, prompt);
    CHECK(calls.empty());
    decode(*engine, seq, 7);
    REQUIRE(calls.size() == 3 - ahead);
    forward.step(7, [&](uint32_t layer, uint32_t pos, uint32_t h) {
      if (h == 0 && layer + ahead < 3) {
        CHECK(calls[layer].layer == layer);
        CHECK(calls[layer].moment == KVASIR_MOMENT_INPUT);
        CHECK(calls[layer].target_layer == layer + ahead);
        CHECK(max_difference(calls[layer].x, forward.input()) < 1e-4);
      }
      return everything(pos);
    });
    CHECK(engine->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("behind a list made a layer ahead the rest of the chain still chooses") {
  const std::string cache =  // sink and window of a chain are whole blocks
      "[cache]\nblock_size = 1\nsink_tokens = 4\nwindow_tokens = 8\ndense_layers = [0]\n";
  const std::string first =
      "[[selector]]\nplugin = 'kvasir.infinigen'\npartial_weight_ratio = 1.0\nbudget_tokens = 40\n"
      "alpha = 1000.0\n";
  for (const char* step : {"", "token_step = 3\n"})
    for (const double p : {0.5, 1.0}) {
      CAPTURE(step);
      CAPTURE(p);
      Prescribed scene;  // queries and keys do not depend on what was attended before
      const std::string second =
          "[[selector]]\nplugin = 'kvasir.twilight'\np = " + std::to_string(p) + "\n";
      const auto alone = scene.engine(cache + step + first + kRecording);
      const auto chained = scene.engine(cache + step + first + second + kRecording);
      const auto a = alone->open(), b = chained->open();
      Prescribed::prompt(*alone, a, 150);
      Prescribed::prompt(*chained, b, 150);
      recording_of(*alone).armed = recording_of(*chained).armed = 1;
      for (int i = 0; i < 10; ++i) {
        Prescribed::decode(*alone, a);
        Prescribed::decode(*chained, b);
      }
      size_t all = 0, kept = 0;
      const auto& want = recording_of(*alone).runs;
      const auto& got = recording_of(*chained).runs;
      REQUIRE(want.size() == got.size());
      for (size_t run = 0; run < want.size(); ++run)
        for (uint32_t head = 0; head < 2; ++head) {
          const auto of_first = attended(want[run], a, head), of_both = attended(got[run], b, head);
          CHECK(std::ranges::includes(of_first, of_both));
          const bool is_dense = run % Prescribed::kLayers == 0;
          CHECK((!is_dense || of_both == of_first));
          if (is_dense) continue;
          all += of_first.size();
          kept += of_both.size();
        }
      CHECK(all > 20 * 2 * 45);
      if (p == 1.0)
        CHECK(kept == all);
      else
        CHECK(kept < all * 2 / 3);
      CHECK(chained->decode_engagement().fallbacks == 0);
    }
}

TEST_CASE("a speculated list is kept for token_step steps like any other") {
  Bench bench(8, 2);
  const auto engine = bench.engine(
      "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n"
      "token_step = 4\n" +
      kCapped + kRecording);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(100, 5));
  book.armed = 1;
  std::vector<uint32_t> before;
  for (uint32_t i = 0; i < 12; ++i) {
    decode(*engine, seq, static_cast<TokenId>(i * 13));
    const auto now = attended(book.runs[2], seq, 0);
    book.runs.clear();
    CHECK(now.size() <= kSink + kCap + kWindow + 4);
    if (i % 4 != 0) {
      before.push_back(100 + i);
      CHECK(now == before);
    }
    before = now;
  }
}

TEST_CASE("an evicting pool limit drops the least used and goes on") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kInfiniGen + "pool_limit = 20\n" +
                                   async("pool_blocks = 8\n") + kRecording);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(100, 5));
  for (uint32_t i = 0; i < 10; ++i) decode(*engine, seq, static_cast<TokenId>(i));
  book.armed = 1;
  decode(*engine, seq, 3);
  // The budget covers all that lives: 20 candidates, one more that left the window since.
  CHECK(attended(book.runs[0], seq, 0).size() == kSink + 20 + 1 + kWindow);
  engine->close(seq);
  CHECK(seen(*engine, kBlocks) == 0);
  CHECK(seen(*engine, kLeases) == 0);
}

TEST_CASE("blocks that come and go give the numbers of blocks that stay") {
  const std::string top_k =
      "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 24\n"
      "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
  const std::string keys = "[selector]\nplugin = 'kvasir.test.draws'\n";
  for (const std::string& strategy : {top_k, keys, kCapped})
    for (const std::string& options :
         {std::string("pool_blocks = 5\n"), std::string("pool_blocks = 0\nqueue_blocks = 3\n"),
          std::string("pool_blocks = 2\nqueue_blocks = 1\ndelay_us = 300\n")}) {
      CAPTURE(strategy);
      CAPTURE(options);
      Bench bench(8, 2);
      EngineOptions more;
      more.max_sequences = 2;
      const auto plain = bench.engine(kCache + strategy, more);
      const auto moving = bench.engine(kCache + strategy + async(options), more);
      std::vector<SequenceId> a, b;
      for (const uint32_t n : {90u, 57u}) {
        a.push_back(plain->open());
        b.push_back(moving->open());
        CHECK(prefill(*plain, a.back(), some_tokens(n, n)) ==
              prefill(*moving, b.back(), some_tokens(n, n)));
      }
      for (TokenId token = 0; token < 8; ++token) {
        std::vector<float> want(600), got(600);
        plain->decode(std::vector<Engine::DecodeItem>{{a[0], token}, {a[1], token}}, want);
        moving->decode(std::vector<Engine::DecodeItem>{{b[0], token}, {b[1], token}}, got);
        CHECK(got == want);
      }
      CHECK(seen(*moving, kFetched) > 0);
      CHECK(seen(*moving, kSpilled) > 0);
      for (const auto seq : b) moving->close(seq);
      CHECK(seen(*moving, kBlocks) == 0);
      CHECK(seen(*moving, kLeases) == 0);
    }
}

TEST_CASE("a lost block is an error that names it, and holds nothing once closed") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + "[selector]\nplugin = 'kvasir.dense'\n" +
                                   async("pool_blocks = 2\nfail_every = 40\n"));
  const auto seq = engine->open(), other = engine->open();
  prefill(*engine, other, some_tokens(20, 6));
  prefill(*engine, seq, some_tokens(100, 5));
  std::string text;
  for (int i = 0; i < 20 && text.empty(); ++i) {
    try {
      decode(*engine, seq, 1);
    } catch (const PluginError& e) {
      text = e.what();
      CHECK(e.plugin() == "kvasir.test.async_storage");
    }
  }
  CAPTURE(text);
  CHECK(text.find("kvasir.test.async_storage") != std::string::npos);
  CHECK(text.find("block ") != std::string::npos);
  CHECK(text.find("layer ") != std::string::npos);
  CHECK(seen(*engine, kLost) == 1);
  engine->close(seq);
  engine->close(other);
  CHECK(seen(*engine, kLeases) == 0);
  CHECK(seen(*engine, kBlocks) == 0);
}
