// Selecting a layer ahead and blocks that must be fetched: the same numbers as with everything at
// hand, whatever the storage's pool, queue and delay; and nothing held afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSink = 4, kWindow = 8, kDims = 6, kCap = 13;
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n";
const std::string kInfiniGen =
    "[selector]\nplugin = 'kvasir.test.infinigen'\npartial_dims = 6\ncap = 13\nalpha = 1.0\n";

std::string async(const std::string& options) {
  return "[storage]\nplugin = 'kvasir.test.async_storage'\n" + options;
}
enum Seen { kBlocks, kAbsent, kFetched, kLost, kSpilled, kLeases };
double seen(const Engine& engine, Seen what) {
  return probe(*engine.pipeline().storage, 0, 0, what);
}

// The choice fake_infinigen documents: partial logits of the speculated query, largest over the
// group; at most kCap tokens, none further than alpha below the best.
std::vector<uint32_t> speculated(const TokenForward& forward, uint32_t layer, uint32_t kv_head,
                                 uint32_t n, double* margin) {
  const auto q = forward.speculated_query(layer);
  std::vector<std::pair<double, uint32_t>> scored;
  for (uint32_t t = kSink; t + kWindow < n; ++t) {
    double best = -INFINITY;
    for (uint32_t h = kv_head * 4; h < kv_head * 4 + 4; ++h) {
      double dot = 0;
      for (uint32_t d = 0; d < kDims; ++d) dot += q[h][d] * forward.key(layer, kv_head, t)[d];
      best = std::max(best, dot / 4.0);
    }
    scored.emplace_back(-best, t);
  }
  std::sort(scored.begin(), scored.end());
  std::vector<uint32_t> out;
  for (size_t i = 0; i < scored.size(); ++i) {
    if (i == kCap) *margin = std::min(*margin, scored[i].first - scored[i - 1].first);
    *margin = std::min(*margin, std::abs(scored[i].first - scored[0].first - 1.0));
    if (i < kCap && scored[i].first <= scored[0].first + 1.0) out.push_back(scored[i].second);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/speculation");

TEST_CASE("InfiniGen: FINAL lists of a layer ahead are what that layer attends to") {
  for (const std::string& storage :
       {std::string(), async("pool_blocks = 6\n"), async("pool_blocks = 0\ndelay_us = 50\n")}) {
    CAPTURE(storage);
    Bench bench(8, 2);
    const auto engine = bench.engine(kCache + kInfiniGen + storage + kRecording);
    recording& book = recording_of(*engine);
    const auto prompt = some_tokens(100, 5);
    TokenForward forward(bench.tiny);
    for (const TokenId token : prompt)
      forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
    const auto seq = engine->open();
    prefill(*engine, seq, prompt);
    CHECK(probe(*engine->pipeline().selectors[0], seq, 1, 0) == 100);  // queries of the prompt
    book.armed = 1;
    double margin = 1.0;
    for (uint32_t i = 0; i < 15; ++i) {
      CAPTURE(i);
      std::vector<std::vector<std::vector<uint32_t>>> must(3,
                                                           std::vector<std::vector<uint32_t>>(2));
      const auto token = static_cast<TokenId>(i * 13);
      const auto want = forward.step(token, [&](uint32_t layer, uint32_t pos, uint32_t h) {
        if (layer == 0) return everything(pos);  // no layer before it to speculate from
        std::vector<TokenForward::Key> keys;
        auto& tokens = must[layer][h / 4];
        if (tokens.empty()) {
          tokens = up_to(kSink);
          for (const uint32_t t : speculated(forward, layer, h / 4, pos + 1, &margin))
            tokens.push_back(t);
          for (uint32_t t = pos + 1 - kWindow; t <= pos; ++t) tokens.push_back(t);
        }
        for (const uint32_t t : tokens) keys.push_back({t});
        return keys;
      });
      CHECK(max_difference(decode(*engine, seq, token), want) < 1e-4);
      REQUIRE(book.n_runs == 3);
      CHECK(attended(book.runs[0], seq, 1) == up_to(100 + i + 1));
      for (uint32_t layer = 1; layer < 3; ++layer)
        for (uint32_t head = 0; head < 2; ++head)
          CHECK(attended(book.runs[layer], seq, head) == must[layer][head]);
      book.clear(book.self);
    }
    CHECK(margin > 1e-6);
    CHECK(engine->decode_engagement().fallbacks == 0);
    if (storage.empty()) continue;
    CHECK(seen(*engine, kFetched) > 0);
    engine->close(seq);
    CHECK(seen(*engine, kBlocks) == 0);
    CHECK(seen(*engine, kLeases) == 0);
  }
}

TEST_CASE("a speculated list is kept for token_step steps like any other") {
  Bench bench(8, 2);
  const auto engine = bench.engine(
      "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n"
      "token_step = 4\n" +
      kInfiniGen + kRecording);
  recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(100, 5));
  book.armed = 1;
  std::vector<uint32_t> before;
  for (uint32_t i = 0; i < 12; ++i) {
    decode(*engine, seq, static_cast<TokenId>(i * 13));
    const auto now = attended(book.runs[2], seq, 0);
    book.clear(book.self);
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
  recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(100, 5));
  for (uint32_t i = 0; i < 10; ++i) decode(*engine, seq, static_cast<TokenId>(i));
  book.armed = 1;
  decode(*engine, seq, 3);
  // Layer 0 attends to all that lives: 20 candidates, one more that left the window since.
  CHECK(attended(book.runs[0], seq, 0).size() == kSink + 20 + 1 + kWindow);
  engine->close(seq);
  CHECK(seen(*engine, kBlocks) == 0);
  CHECK(seen(*engine, kLeases) == 0);
}

TEST_CASE("blocks that come and go give the numbers of blocks that stay") {
  const std::string top_k =
      "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 24\n"
      "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
  const std::string keys = "[selector]\nplugin = 'kvasir.test.magicpig'\n";
  for (const std::string& strategy : {top_k, keys, kInfiniGen})
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
