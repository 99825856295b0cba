// The counters that prove engagement, against a case counted by hand; what sparse attention reports
// is what the backend was given.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 4\n"
    "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
const std::string kSmall = "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 4\n";

}  // namespace

TEST_SUITE_BEGIN("core/runtime/engagement");

TEST_CASE("what a backend says it skipped is summed, prompts and decoding apart") {
  Bench bench(8, 2);
  const auto engine = bench.engine(
      kSmall + kTopK + "[attention]\nplugin = 'kvasir.test.bad_attention'\nfault = 'skips'\n");
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(20));
  for (TokenId token = 0; token < 2; ++token) decode(*engine, seq, token);
  CHECK(engine->prefill_engagement().backend_skipped == 3 * 5);
  CHECK(engine->decode_engagement().backend_skipped == 2 * 3 * 5);
}

TEST_CASE("a small case by hand") {
  // 3 layers, 2 kv heads, head_dim 16, f32. 20 tokens cached, the 21st decoded: block 0 is the
  // sink, the window begins at 17 rounded down to 16, candidates are blocks 1 to 3, one is taken.
  Bench bench(8, 2);
  const auto engine = bench.engine(kSmall + kTopK);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(20));
  decode(*engine, seq, 7);
  const Engagement& e = engine->decode_engagement();
  CHECK(e.steps == 1);
  CHECK(e.layer_steps == 3);
  CHECK(e.tokens_considered == 3 * 2 * 21);
  CHECK(e.tokens_selected == 3 * 2 * 4);
  CHECK(e.tokens_attended == 3 * 2 * (4 + 4 + 5));
  CHECK(e.kv_bytes_read == 3 * 2 * 13 * (16 + 16) * 4);
  CHECK(e.representative_bytes_read == 3 * 2 * 3 * (2 * 16) * 4);
  CHECK(e.selections == 3);
  CHECK(e.reused == 0);
  CHECK(e.bypassed == 0);
  CHECK(e.fallbacks == 0);
  CHECK(e.boundary_calls == 3 * 4);  // a new block is opened; score, select, run
  decode(*engine, seq, 8);
  CHECK(e.boundary_calls == 3 * 4 + 3 * 3);
  CHECK(e.total_nanos > 0);
  CHECK(e.plugin_nanos + e.core_nanos + e.model_nanos <= e.total_nanos);
  CHECK(e.choose_nanos > 0);
  CHECK(e.attend_nanos > 0);
  CHECK(e.choose_nanos + e.attend_nanos <= e.plugin_nanos + e.core_nanos);
  const Engagement& p = engine->prefill_engagement();
  CHECK(p.steps == 1);
  CHECK(p.tokens_considered == 3 * 2 * 20);
  CHECK(p.tokens_attended == 3 * 2 * 20);
  CHECK(p.selections == 0);
  engine->reset_engagement();
  CHECK(engine->decode_engagement().steps == 0);
}

TEST_CASE("calls across the boundary stay few for each layer and step") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kSmall + kTopK);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(50));
  for (uint32_t i = 0; i < 40; ++i) {
    const uint64_t before = engine->decode_engagement().boundary_calls;
    decode(*engine, seq, static_cast<TokenId>(i));
    CHECK(engine->decode_engagement().boundary_calls - before <= 3 * 8);
  }
}

TEST_CASE("a dense run says that it attended everything, a bypassed one that it was bypassed") {
  Bench bench(8, 2);
  for (const std::string& selector :
       {std::string("[selector]\nplugin = 'kvasir.dense'\n"),
        std::string("[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 400\n"
                    "[representative]\nplugin = 'kvasir.mean'\n")}) {
    CAPTURE(selector);
    const auto engine = bench.engine(kSmall + selector);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(60));
    decode(*engine, seq, 1);
    const Engagement& e = engine->decode_engagement();
    CHECK(e.tokens_considered == 3 * 2 * 61);
    CHECK(e.tokens_attended == e.tokens_considered);
    CHECK(e.tokens_selected == 3 * 2 * (56 - 4));
    CHECK(e.bypassed == 3);
    CHECK(e.selections == 0);
    CHECK(e.representative_bytes_read == 0);
  }
}

TEST_CASE("counters say what the backend was given, over batches, evictions and token units") {
  Bench bench(8, 2);
  for (const std::string& selector :
       {kTopK, std::string("[selector]\nplugin = 'kvasir.streaming'\n"),
        std::string("[selector]\nplugin = 'kvasir.h2o'\nhh_size = 9\n"),
        std::string("[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 11\nwindow_size = 5\n"),
        std::string("[selector]\nplugin = 'kvasir.test.calls'\nunit = 'token'\nevery = 3\n"),
        std::string("[selector]\nplugin = 'kvasir.test.calls'\nlists = 'half_listed'\n"
                    "weight = 1.0\n")}) {
    CAPTURE(selector);
    EngineOptions options;
    options.max_sequences = 2;
    const auto engine = bench.engine(kSmall + selector + kRecording, options);
    Recording& book = recording_of(*engine);
    const auto a = engine->open(), b = engine->open();
    prefill(*engine, a, some_tokens(60, 1));
    prefill(*engine, b, some_tokens(33, 2));
    book.armed = 1;
    std::vector<float> logits(600);
    for (TokenId token = 0; token < 10; ++token) {
      const Engine::DecodeItem items[] = {{a, token}, {b, token}};
      engine->decode(items, logits);
    }
    uint64_t given = 0;
    for (uint32_t i = 0; i < book.runs.size(); ++i)
      for (uint32_t r = 0; r < book.runs[i].ranges.size(); ++r)
        given += book.runs[i].ranges[r].token.size();
    CHECK(engine->decode_engagement().tokens_attended == given);
    CHECK(engine->decode_engagement().kv_bytes_read == given * 128);
    CHECK(given < engine->decode_engagement().tokens_considered);
  }
}
