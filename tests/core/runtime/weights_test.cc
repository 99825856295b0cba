// Log-weights, lists per query head and chains: outputs against a weighted attention in double
// precision, query head by query head.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/selection_oracle.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSink = 4, kWindow = 8;
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n";

// The draw that draws_selector documents: token t of a head with probability u, weight -ln u.
double uniform(uint64_t seed, uint32_t layer, uint32_t head, uint32_t token, uint64_t salt) {
  uint64_t x = seed ^ salt ^ (uint64_t{layer} << 52) ^ (uint64_t{head} << 36) ^ token;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return (double(x >> 11) + 0.5) / 9007199254740992.0;
}
std::vector<TokenForward::Key> drawn(uint64_t seed, uint32_t layer, uint32_t pos, uint32_t head) {
  std::vector<TokenForward::Key> keys;
  const uint32_t n = pos + 1;
  for (uint32_t t = 0; t < n; ++t) {
    if (t < kSink || t + kWindow >= n) {
      keys.push_back({t});
      continue;
    }
    const double u = 0.05 + 0.9 * uniform(seed, layer, head, t, 1);
    if (uniform(seed, layer, head, t, 2) < u) keys.push_back({t, -std::log(u)});
  }
  return keys;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/weights");

TEST_CASE("draws: each query head attends to its own draw with its own weights") {
  for (const uint32_t n_kv_heads : {8u, 2u, 1u})
    for (const uint32_t block : {8u, 5u})
      for (const std::string& backend : {std::string(), kRecording}) {
        if (few_cases() && n_kv_heads != 2) continue;
        CAPTURE(n_kv_heads);
        CAPTURE(backend);
        Bench bench(8, n_kv_heads);
        EngineOptions options;
        options.seed = 99;
        options.max_sequences = 2;
        const auto engine =
            bench.engine("[cache]\nblock_size = " + std::to_string(block) +
                             "\nsink_tokens = 4\nwindow_tokens = 8\n[selector]\nplugin = "
                             "'kvasir.test.draws'\n" +
                             backend,
                         options);
        const auto prompt = some_tokens(90, 3);
        TokenForward forward(bench.tiny);
        for (const TokenId token : prompt)
          forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
        const auto other = engine->open(), seq = engine->open();
        prefill(*engine, other, some_tokens(40, 4));
        prefill(*engine, seq, prompt);
        // Every block that holds a candidate is named once at the end of each prompt: tokens 4 to
        // n - 9, block 0 among them.
        const auto blocks = [&](uint32_t n) {
          return (n - 1 - kWindow) / block + 1 - kSink / block;
        };
        CHECK(probe(*engine->pipeline().selectors[0], 0) == 3 * (blocks(90) + blocks(40)));
        for (uint32_t i = 0; i < 12; ++i) {
          const auto token = static_cast<TokenId>(i * 11);
          const auto want = forward.step(token, [&](uint32_t layer, uint32_t pos, uint32_t head) {
            return drawn(99, layer, pos, head);
          });
          std::vector<float> logits(600);
          const Engine::DecodeItem items[] = {{other, token}, {seq, token}};
          engine->decode(items, logits);
          CHECK(max_difference({logits.data() + 300, 300}, want) < 1e-4);
        }
        CHECK(engine->decode_engagement().fallbacks == 0);
        const auto dense = bench.engine(kCache + "[selector]\nplugin = 'kvasir.dense'\n");
        const auto plain = dense->open();
        prefill(*dense, plain, prompt);
        const auto fork = engine->open();
        prefill(*engine, fork, prompt);
        CHECK(max_difference(decode(*engine, fork, 0), decode(*dense, plain, 0)) > 1e-3);
      }
}

TEST_CASE("a selection too large for the first buffer is asked for again") {
  Bench bench(8, 2);
  const auto plain = bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.draws'\n");
  const auto often =
      bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.draws'\nrefuse_every = 2\n");
  const auto a = plain->open(), b = often->open();
  const auto prompt = some_tokens(1300, 5);  // more candidates than the first buffer holds
  prefill(*plain, a, prompt);
  prefill(*often, b, prompt);
  for (TokenId token = 0; token < 4; ++token)
    CHECK(decode(*plain, a, token) == decode(*often, b, token));
  CHECK(probe(*often->pipeline().selectors[0], 1) > 0);
  CHECK(often->decode_engagement().fallbacks == 0);
}

TEST_CASE("a selector that needed more space once is not asked twice ever after") {
  Bench bench(8, 2);
  EngineOptions options;
  options.max_context = 3000;
  const auto engine = bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.draws'\n", options);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(2400, 5));  // half of them are more than the first buffer holds
  for (TokenId token = 0; token < 30; ++token) decode(*engine, seq, token);
  const auto n_due = static_cast<double>(engine->decode_engagement().selections);
  const double n_asked = probe(*engine->pipeline().selectors[0], 2);
  CHECK(n_asked > n_due);  // the first time, and where a draw is larger than all before
  CHECK(n_asked < 1.5 * n_due);
}

TEST_CASE("one weight per index, blocks and tokens, heads that say all between heads that list") {
  for (const std::string unit : {"block", "token"})
    for (const std::string lists : {"listed", "half_listed"}) {
      CAPTURE(unit);
      CAPTURE(lists);
      Bench bench(8, 2);
      const auto engine =
          bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.calls'\nunit = '" + unit +
                       "'\nlists = '" + lists + "'\nevery = 3\nweight = 1.25\n");
      const auto prompt = some_tokens(90, 6);
      TokenForward forward(bench.tiny);
      for (const TokenId token : prompt)
        forward.step(token, [](uint32_t, uint32_t p, uint32_t) { return everything(p); });
      const auto seq = engine->open();
      prefill(*engine, seq, prompt);
      for (uint32_t i = 0; i < 6; ++i) {
        const auto token = static_cast<TokenId>(i);
        const auto want = forward.step(token, [&](uint32_t, uint32_t pos, uint32_t head) {
          const uint32_t n = pos + 1, per = unit == "block" ? 8 : 1;
          const uint32_t sink = unit == "block" ? 8 : kSink;
          const uint32_t window = (n - kWindow) / per * per;
          std::vector<TokenForward::Key> keys;
          for (uint32_t t = 0; t < n; ++t) {
            if (t < sink || t >= window)
              keys.push_back({t});
            else if (lists == "half_listed" && head / 4 == 1)
              keys.push_back({t});
            else if (t / per % 3 == 0)
              keys.push_back({t, -1.25});
          }
          return keys;
        });
        CHECK(max_difference(decode(*engine, seq, token), want) < 1e-4);
      }
      CHECK(engine->decode_engagement().fallbacks == 0);
    }
}

TEST_CASE("a chain: twilight keeps, among block_topk's blocks, what reaches p") {
  for (const double p : {0.6, 1.0}) {
    Bench bench(8, 2);
    const auto engine =
        bench.engine(kCache +
                     "[[selector]]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 40\n"
                     "[[selector]]\nplugin = 'kvasir.twilight'\np = " +
                     (p < 1 ? "0.6" : "1.0") +
                     "\n"
                     "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n" +
                     kRecording);
    Recording& book = recording_of(*engine);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(150, 7));
    book.armed = 2;
    for (uint32_t step = 0; step < 10; ++step) decode(*engine, seq, static_cast<TokenId>(step));
    uint32_t fewer = 0;
    for (uint32_t i = 0; i < book.runs.size(); ++i) {
      const RecordedRun& run = book.runs[i];
      SelectionCase of;
      of.n_q_heads = 8, of.n_kv_heads = 2, of.head_dim = 16, of.block_size = 8;
      of.kv_len = run.ranges[0].kv_len, of.sink_tokens = kSink, of.window_tokens = kWindow;
      of.budget_tokens = 40, of.representative = OracleRepresentative::kMinMax;
      of.k.assign(run.k[0].begin(), run.k[0].end());
      of.q.assign(run.q.begin(), run.q.begin() + 128);
      const SelectionAnswer blocks = select_blocks(of);
      for (uint32_t head = 0; head < 2; ++head) {
        const auto allowed = tokens_of(of, blocks.attended[head]);
        const auto chosen = tokens_of(of, blocks.selected[head]);
        const auto got = attended(run, seq, head);
        CHECK(std::includes(allowed.begin(), allowed.end(), got.begin(), got.end()));
        for (const uint32_t t : allowed)  // the forced part stays whole
          if (!std::binary_search(chosen.begin(), chosen.end(), t))
            CHECK(std::binary_search(got.begin(), got.end(), t));
        fewer += got.size() < allowed.size();
        for (uint32_t h = head * 4; h < head * 4 + 4; ++h) {
          double kept = 0, all = 0;
          for (const uint32_t t : chosen) {
            double dot = 0;
            for (uint32_t d = 0; d < 16; ++d)
              dot += of.q[h * 16 + d] * of.k[(size_t{head} * of.kv_len + t) * 16 + d];
            const double weight = std::exp(dot / 4.0);
            all += weight;
            if (std::binary_search(got.begin(), got.end(), t)) kept += weight;
          }
          CHECK(kept / all > p - 0.02);  // keys of four bits
        }
      }
    }
    if (p < 1) CHECK(fewer > book.runs.size());
  }
}
