// Dense attention through the step loop is the model's forward pass, however the prompt is cut,
// whatever the block size, alone or in a batch; a budget that covers everything is dense.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/model/reference_model.h"
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

std::string cache(const std::string& keys) { return "[cache]\n" + keys + "\n"; }
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 64\n"
    "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
const std::string kStreaming = "[selector]\nplugin = 'kvasir.streaming'\n";

double difference(std::span<const float> got, const Row& want) {
  double most = 0;
  for (size_t i = 0; i < got.size(); ++i)
    most = larger_or_nan(most, std::abs(double{got[i]} - want[i]));
  return most;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/forward");

TEST_CASE("any chunk and block size gives the reference's logits, then its greedy tokens") {
  Bench bench(8, 2);
  const uint32_t n_prompt = few_cases() ? 130 : 530, n_all = n_prompt + 30;
  auto tokens = some_tokens(n_prompt);
  // One run of the engine decides the greedy continuation; the reference must agree at each step.
  {
    const auto engine = bench.engine(kDense);
    const auto seq = engine->open();
    TokenId next = best(prefill(*engine, seq, tokens));
    for (int i = 0; i < 30; ++i) {
      tokens.push_back(next);
      next = best(decode(*engine, seq, next));
    }
  }
  const Rows want = ReferenceModel(*bench.tiny.file).forward(tokens);
  Logits first_run;  // logits of the first case, bit for bit those of all
  struct Case {
    uint32_t chunk, block;
  };
  for (const Case c : {Case{1, 16},
                       {7, 100},
                       {16, 16},
                       {100, 1},
                       {512, 128},
                       {1024, 100},
                       {7, 1},
                       {512, 16},
                       {100, 128}}) {
    if (few_cases() && c.chunk != 100 && (c.chunk != 7 || emulated())) continue;
    CAPTURE(c.chunk);
    CAPTURE(c.block);
    const auto engine = bench.engine(cache("chunk_size = " + std::to_string(c.chunk) +
                                           "\nblock_size = " + std::to_string(c.block)) +
                                     kDense);
    const auto seq = engine->open();
    Engine::PrefillHooks hooks;
    uint32_t seen = 0;
    double worst = 0;
    hooks.all_logits = [&](uint32_t first, uint32_t n, const float* logits) {
      CHECK(first == seen);
      seen += n;
      for (uint32_t i = 0; i < n; ++i)
        worst = larger_or_nan(worst, difference({logits + size_t{i} * 300, 300}, want[first + i]));
    };
    Logits run;
    std::vector<float> last(300);
    REQUIRE(engine->prefill(seq, {tokens.data(), n_prompt}, last, hooks) == n_prompt);
    run.push_back(last);
    CHECK(seen == n_prompt);
    CHECK(worst < 1e-4);
    CHECK(difference(last, want[n_prompt - 1]) < 1e-4);
    for (uint32_t i = n_prompt; i < n_all; ++i) {
      CAPTURE(i);
      const auto logits = decode(*engine, seq, tokens[i]);
      CHECK(difference(logits, want[i]) < 1e-4);
      if (i + 1 < n_all) CHECK(best(logits) == tokens[i + 1]);
      run.push_back(logits);
    }
    if (first_run.empty()) first_run = run;
    CHECK(run == first_run);
    CHECK(engine->kv_len(seq) == n_all);
  }
}

TEST_CASE("a prompt in several turns is one prompt") {
  Bench bench(8, 8);
  const auto tokens = some_tokens(90, 4);
  const auto whole = bench.engine(cache("block_size = 16") + kDense);
  const auto a = whole->open();
  const auto want = prefill(*whole, a, tokens);
  const auto turns = bench.engine(cache("block_size = 16\nchunk_size = 8") + kDense);
  const auto b = turns->open();
  prefill(*turns, b, {tokens.data(), 33});
  for (uint32_t i = 33; i < 40; ++i) decode(*turns, b, tokens[i]);
  const auto got = prefill(*turns, b, {tokens.data() + 40, 50});
  CHECK(max_difference(got, want) < 1e-4);
  CHECK(std::vector<TokenId>(turns->tokens(b).begin(), turns->tokens(b).end()) == tokens);
}

TEST_CASE("a sequence does not depend on its batch") {
  // Shorter than budget and window, between, and longer: sequences of one batch take different
  // paths.
  const std::vector<uint32_t> lengths =
      few_cases() ? std::vector<uint32_t>{9, 40, 129} : std::vector<uint32_t>{9, 300, 40, 513, 129};
  const int n_steps = few_cases() ? 5 : 20;
  Bench bench(8, 2);
  for (const std::string& strategy : {kDense, kTopK, kStreaming}) {
    if (few_cases() && strategy != kTopK) continue;
    CAPTURE(strategy);
    const std::string toml = cache("block_size = 16\nwindow_tokens = 32") + strategy;
    EngineOptions options;
    options.max_sequences = 5;
    const auto together = bench.engine(toml, options);
    std::vector<SequenceId> ids;
    std::vector<TokenId> next;
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      ids.push_back(together->open());
      next.push_back(best(prefill(*together, ids[i], some_tokens(lengths[i], i))));
    }
    std::vector<Logits> got(lengths.size());
    std::vector<std::vector<TokenId>> fed(lengths.size());
    for (int step = 0; step < n_steps; ++step) {
      std::vector<Engine::DecodeItem> items;
      for (size_t i = 0; i < ids.size(); ++i) {
        items.push_back({ids[i], next[i]});
        fed[i].push_back(next[i]);
      }
      std::vector<float> logits(ids.size() * 300);
      together->decode(items, logits);
      for (size_t i = 0; i < ids.size(); ++i) {
        got[i].emplace_back(logits.begin() + i * 300, logits.begin() + (i + 1) * 300);
        next[i] = best(got[i].back());
      }
    }
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      CAPTURE(lengths[i]);
      const auto alone = bench.engine(toml);
      const auto seq = alone->open();
      prefill(*alone, seq, some_tokens(lengths[i], i));
      for (size_t step = 0; step < fed[i].size(); ++step) {
        CAPTURE(step);
        CHECK(decode(*alone, seq, fed[i][step]) == got[i][step]);
      }
    }
  }
}

TEST_CASE("one sequence twice in a batch is refused") {
  Bench bench;
  EngineOptions options;
  options.max_sequences = 2;
  const auto engine = bench.engine(kDense, options);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(5));
  std::vector<float> logits(600);
  const Engine::DecodeItem items[] = {{seq, 1}, {seq, 2}};
  CHECK_THROWS_AS(engine->decode(items, logits), Error);
  CHECK(engine->kv_len(seq) == 5);
}

TEST_CASE("a budget that covers everything is dense, bit for bit when bypassed") {
  Bench bench(8, 2);
  const auto tokens = some_tokens(few_cases() ? 120 : 400, 3);
  const std::string keys = "block_size = 16\nwindow_tokens = 32\n";
  const std::string budget =
      "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 4096\n"
      "[representative]\nplugin = 'kvasir.minmax'\n";
  const auto dense = bench.engine(cache(keys) + kDense);
  const auto covered = bench.engine(cache(keys) + budget);
  const auto through = bench.engine(cache(keys + "bypass = false") + budget);
  const auto a = dense->open(), b = covered->open(), c = through->open();
  TokenId next = best(prefill(*dense, a, tokens));
  const int n_steps = few_cases() ? 5 : 20;
  prefill(*covered, b, tokens);
  prefill(*through, c, tokens);
  for (int step = 0; step < n_steps; ++step) {
    const auto want = decode(*dense, a, next);
    CHECK(decode(*covered, b, next) == want);
    CHECK(max_difference(decode(*through, c, next), want) <= 1e-6 * largest(want));
    next = best(want);
  }
  CHECK(covered->decode_engagement().bypassed == n_steps * 3);
  CHECK(covered->decode_engagement().selections == 0);
  CHECK(through->decode_engagement().bypassed == 0);
  CHECK(through->decode_engagement().selections == n_steps * 3);
}

TEST_CASE("a small budget is not dense: the tests above can fail") {
  Bench bench(8, 2);
  const auto tokens = some_tokens(few_cases() ? 170 : 400, 3);
  const std::string keys = "block_size = 16\nwindow_tokens = 32\n";
  const auto dense = bench.engine(cache(keys) + kDense);
  const auto a = dense->open();
  const TokenId next = best(prefill(*dense, a, tokens));
  const auto want = decode(*dense, a, next);
  for (const std::string& strategy : {kTopK, kStreaming}) {
    const auto sparse = bench.engine(cache(keys) + strategy);
    const auto b = sparse->open();
    prefill(*sparse, b, tokens);
    CHECK(max_difference(decode(*sparse, b, next), want) > 1e-3);
  }
}
