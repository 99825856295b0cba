// Which layer and step asks for a selection, and that whatever is reused still covers every token
// that must be attended.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kPrompt = 60, kSteps = 24;
const std::string kSmall = "block_size = 4\nsink_tokens = 5\nwindow_tokens = 9\n";

struct Outcome {
  std::vector<std::vector<uint32_t>> selects;  // [step]: layers asked, in order
  // [step][layer][kv head]
  std::vector<std::vector<std::vector<std::vector<uint32_t>>>> seen;
  uint64_t reused = 0, selections = 0, bypassed = 0;
};

Outcome run(const std::string& keys, const std::string& options, uint32_t n_kv_heads = 2) {
  Bench bench(8, n_kv_heads);
  const auto engine =
      bench.engine("[cache]\n" + kSmall + keys + "\n[selector]\nplugin = 'kvasir.test.calls'\n" +
                   options + "\n" + kRecording);
  Calls& asked = calls_of(*engine);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(kPrompt));
  CHECK(asked.size() == 0);
  book.armed = 1;
  Outcome out;
  for (uint32_t step = 0; step < kSteps; ++step) {
    decode(*engine, seq, static_cast<TokenId>(step));
    out.selects.emplace_back();
    for (uint32_t i = 0; i < asked.size(); ++i) {
      CHECK(asked[i].moment == KVASIR_MOMENT_APPENDED);
      CHECK(asked[i].seq[0].phase == KVASIR_PHASE_DECODE);
      CHECK(asked[i].seq[0].kv_len == kPrompt + step + 1);
      out.selects.back().push_back(asked[i].layer);
    }
    REQUIRE(book.runs.size() == 3);
    out.seen.emplace_back();
    for (uint32_t layer = 0; layer < 3; ++layer) {
      out.seen.back().emplace_back();
      for (uint32_t head = 0; head < n_kv_heads; ++head)
        out.seen.back().back().push_back(attended(book.runs[layer], seq, head));
    }
    asked.clear();
    book.runs.clear();
  }
  out.reused = engine->decode_engagement().reused;
  out.selections = engine->decode_engagement().selections;
  out.bypassed = engine->decode_engagement().bypassed;
  return out;
}

// Sink and window are attended at every step, and no token twice.
void check_forced(const Outcome& out) {
  for (uint32_t step = 0; step < kSteps; ++step)
    for (const auto& layer : out.seen[step])
      for (const auto& tokens : layer) {
        CAPTURE(step);
        const uint32_t n = kPrompt + step + 1;
        const auto holds = [&](uint32_t t) {
          return std::binary_search(tokens.begin(), tokens.end(), t);
        };
        bool all = true;
        for (uint32_t t = 0; t < 5; ++t) all = all && holds(t);
        for (uint32_t t = n - 9; t < n; ++t) all = all && holds(t);
        CHECK(all);
        CHECK(tokens.back() == n - 1);
        CHECK(std::adjacent_find(tokens.begin(), tokens.end()) == tokens.end());
      }
}

const std::vector<uint32_t> kAll = {0, 1, 2};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/cadence");

TEST_CASE("every sparse layer, every step, when nothing is said") {
  const Outcome out = run("", "every = 3");
  for (const auto& layers : out.selects) CHECK(layers == kAll);
  CHECK(out.selections == 3 * kSteps);
  CHECK(out.reused == 0);
  check_forced(out);
  // By hand, step 0 of 61 tokens: sink 8, window from 52; candidates 2 to 12; kept 3, 6, 9, 12.
  std::vector<uint32_t> want = up_to(8);
  for (const uint32_t block : {3u, 6u, 9u, 12u})
    for (uint32_t t = 0; t < 4; ++t) want.push_back(block * 4 + t);
  for (uint32_t t = 52; t < 61; ++t) want.push_back(t);
  CHECK(out.seen[0][1][1] == want);
}

TEST_CASE("token_step reuses, with the window frozen") {
  for (const std::string unit : {"block", "token"}) {
    CAPTURE(unit);
    const Outcome out = run("token_step = 5", "every = 3\nunit = '" + unit + "'");
    for (uint32_t step = 0; step < kSteps; ++step)
      CHECK(out.selects[step] == (step % 5 == 0 ? kAll : std::vector<uint32_t>{}));
    check_forced(out);
    CHECK(out.reused == 3 * (kSteps - 5));
    for (uint32_t step = 0; step < kSteps; ++step) {  // a reused list gains the new token only
      if (step % 5 == 0) continue;
      auto want = out.seen[step - 1][2][0];
      want.push_back(kPrompt + step);
      CHECK(out.seen[step][2][0] == want);
    }
  }
}

TEST_CASE("a plugin's reuse_steps, alone and against token_step") {
  const auto asked = [](const Outcome& out) {
    std::vector<uint32_t> steps;
    for (uint32_t step = 0; step < kSteps; ++step)
      if (!out.selects[step].empty()) steps.push_back(step);
    return steps;
  };
  CHECK(asked(run("", "reuse_steps = 6")) == std::vector<uint32_t>{0, 7, 14, 21});
  CHECK(asked(run("token_step = 9", "reuse_steps = 6")) == std::vector<uint32_t>{0, 7, 14, 21});
  CHECK(asked(run("token_step = 4", "reuse_steps = 6")) ==
        std::vector<uint32_t>{0, 4, 8, 12, 16, 20});
  CHECK(asked(run("", "reuse_steps = 4294967295")) == std::vector<uint32_t>{0});
  check_forced(run("", "reuse_steps = 4294967295"));
}

TEST_CASE("layer_step and dense layers") {
  const Outcome pairs = run("layer_step = 2", "every = 3");
  for (const auto& layers : pairs.selects) CHECK(layers == std::vector<uint32_t>{0, 2});
  for (const auto& layers : pairs.seen) CHECK(layers[0] == layers[1]);
  check_forced(pairs);
  const Outcome dense = run("dense_layers = [1]", "every = 3");
  for (uint32_t step = 0; step < kSteps; ++step) {
    CHECK(dense.selects[step] == std::vector<uint32_t>{0, 2});
    CHECK(dense.seen[step][1][0] == up_to(kPrompt + step + 1));
    CHECK(dense.seen[step][0][0] != up_to(kPrompt + step + 1));
  }
  const Outcome both = run("dense_layers = [0]\nlayer_step = 3\ntoken_step = 2", "every = 3");
  for (uint32_t step = 0; step < kSteps; ++step)
    CHECK(both.selects[step] ==
          (step % 2 == 0 ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}));
  check_forced(both);
}

TEST_CASE("every n-th layer is dense, and the named ones with them") {
  const auto sparse = [](const std::string& keys) { return run(keys, "every = 3").selects[0]; };
  CHECK(sparse("dense_layer_every = 0") == std::vector<uint32_t>{0, 1, 2});
  CHECK(sparse("dense_layer_every = 2") == std::vector<uint32_t>{1});
  CHECK(sparse("dense_layer_every = 3") == std::vector<uint32_t>{1, 2});
  CHECK(sparse("dense_layer_every = 16") == std::vector<uint32_t>{1, 2});
  CHECK(sparse("dense_layer_every = 16\ndense_layers = [0, 2]") == std::vector<uint32_t>{1});
  CHECK(sparse("dense_layer_every = 1").empty());
}

TEST_CASE("dense_layers beyond the model is refused with its place") {
  CHECK_THROWS_WITH_AS(run("dense_layers = [3]", ""), doctest::Contains("test.toml"), Error);
}

TEST_CASE("lists that say all or none hold for new candidates too") {
  // Said once for the whole life of the sequence (a head that streams, a head that sees all).
  const Outcome out = run("", "lists = 'mixed'\nreuse_steps = 4294967295\nunit = 'token'");
  for (uint32_t step = 0; step < kSteps; ++step) {
    CHECK(out.selects[step].size() == (step == 0 ? 3 : 0));
    const uint32_t n = kPrompt + step + 1;
    CHECK(out.seen[step][0][0] == up_to(n));
    auto streaming = up_to(5);
    for (uint32_t t = n - 9; t < n; ++t) streaming.push_back(t);
    CHECK(out.seen[step][0][1] == streaming);
  }
}

TEST_CASE("streaming attends to sink and window only, however long it runs") {
  Bench bench(8, 2);
  const auto engine =
      bench.engine("[cache]\n" + kSmall + "[selector]\nplugin = 'kvasir.streaming'\n" + kRecording);
  Recording& book = recording_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(kPrompt));
  book.armed = 1;
  for (uint32_t step = 0; step < 40; ++step) {
    decode(*engine, seq, 1);
    auto want = up_to(5);
    const uint32_t n = kPrompt + step + 1;
    for (uint32_t t = n - 9; t < n; ++t) want.push_back(t);
    for (uint32_t i = 0; i < book.runs.size(); ++i) CHECK(attended(book.runs[i], seq, 0) == want);
    book.runs.clear();
  }
}

TEST_CASE("new blocks become candidates when the list is made anew") {
  const Outcome out = run("token_step = 8", "every = 1");
  for (uint32_t step = 0; step < kSteps; ++step)  // everything is kept: nothing may be missing
    for (uint32_t layer = 0; layer < 3; ++layer)
      CHECK(out.seen[step][layer][0] == up_to(kPrompt + step + 1));
}

TEST_CASE("a list made anew out of turn says so") {
  // Five candidate blocks are needed; they are there in the middle of a period of four steps.
  Bench bench(8, 2);
  const auto engine =
      bench.engine("[cache]\n" + kSmall +
                   "token_step = 4\n[selector]\nplugin = 'kvasir.test.calls'\nmax_units = 4\n");
  Calls& asked = calls_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(30));  // window from 20 on: candidates 2 to 4
  std::vector<uint32_t> steps, forced;
  for (uint32_t step = 0; step < 16; ++step) {
    decode(*engine, seq, 1);
    if (asked.size() > 0) steps.push_back(step);
    if (asked.size() > 0 && asked[0].seq[0].flags & KVASIR_STEP_FORCED) forced.push_back(step);
    asked.clear();
  }
  // 37 tokens put the window at 28: candidates 2 to 6. Then every fourth step again.
  CHECK(steps == std::vector<uint32_t>{6, 8, 12});
  CHECK(forced == std::vector<uint32_t>{6});
}

TEST_CASE("a prompt window keeps the prompt's end and all that follows, or hands over in bulk") {
  for (const uint32_t flush : {0u, 6u}) {
    CAPTURE(flush);
    const Outcome out =
        run("window_mode = 'prompt'\nwindow_flush_tokens = " + std::to_string(flush),
            "unit = 'token'\nlists = 'none'");
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t n = kPrompt + step + 1;
      auto want = up_to(5);
      for (uint32_t t = kPrompt - 9 + (flush ? (step + 1) / flush * flush : 0); t < n; ++t)
        want.push_back(t);
      CHECK(out.seen[step][1][0] == want);
    }
  }
}
