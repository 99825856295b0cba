// Sequences fork, truncate and close: a fork that diverges is a sequence of its own, a cut one is
// as if it had never been longer, and storage holds nothing for what is gone.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 32\n"
    "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
const std::string kCounted = "[storage]\nplugin = 'kvasir.test.bad_storage'\n";
const std::string kAsync = "[storage]\nplugin = 'kvasir.test.async_storage'\npool_blocks = 4\n";

std::string cache(uint32_t chunk) {
  return "[cache]\nblock_size = 16\nwindow_tokens = 20\nchunk_size = " + std::to_string(chunk) +
         "\n";
}
// Logits of the steps that feed `tokens` one by one.
Logits feed(Engine& engine, SequenceId seq, std::span<const TokenId> tokens) {
  Logits out;
  for (const TokenId token : tokens) out.push_back(decode(engine, seq, token));
  return out;
}
Logits fresh(Bench& bench, const std::string& toml, std::span<const TokenId> prompt,
             std::span<const TokenId> tokens) {
  const auto engine = bench.engine(toml);
  const auto seq = engine->open();
  prefill(*engine, seq, prompt);
  return feed(*engine, seq, tokens);
}
void check_equal(const Logits& a, const Logits& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(max_difference(a[i], b[i]) < 1e-4);
  }
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/sequence");

TEST_CASE("forks that diverge are two sequences") {
  Bench bench(8, 2);
  for (const std::string& storage : {std::string(), kCounted, kAsync})
    for (const uint32_t at : {160u, 167u, 175u}) {  // whole blocks, an open one, nearly full
      if (few_cases() && at != 167) continue;
      CAPTURE(storage);
      CAPTURE(at);
      const std::string toml = cache(64) + kTopK + storage;
      const auto prompt = some_tokens(at, 5);
      const auto left = some_tokens(40, 6), right = some_tokens(40, 7);
      EngineOptions options;
      options.max_sequences = 2;
      const auto engine = bench.engine(toml, options);
      const auto a = engine->open();
      prefill(*engine, a, prompt);
      const auto b = engine->fork(a);
      CHECK(engine->kv_len(b) == at);
      Logits got_a, got_b;
      for (size_t i = 0; i < left.size(); ++i) {
        const Engine::DecodeItem items[] = {{a, left[i]}, {b, right[i]}};
        std::vector<float> logits(600);
        engine->decode(items, logits);
        got_a.emplace_back(logits.begin(), logits.begin() + 300);
        got_b.emplace_back(logits.begin() + 300, logits.end());
      }
      check_equal(got_a, fresh(bench, toml, prompt, left));
      check_equal(got_b, fresh(bench, toml, prompt, right));
      engine->close(a);
      check_equal(feed(*engine, b, left), [&] {
        auto all = right;
        all.insert(all.end(), left.begin(), left.end());
        auto logits = fresh(bench, toml, prompt, all);
        return Logits(logits.begin() + 40, logits.end());
      }());
    }
}

TEST_CASE("a truncated sequence goes on as a fresh one") {
  Bench bench(8, 2);
  for (const std::string& storage : {std::string(), kAsync})
    for (const uint32_t keep : {0u, 1u, 16u, 100u, 112u, 159u, 170u, 176u}) {
      if (few_cases() && keep != 100 && keep != 170) continue;
      CAPTURE(storage);
      CAPTURE(keep);
      const std::string toml = cache(48) + kTopK + storage;
      const auto all = some_tokens(160, 8), grown = some_tokens(30, 9), after = some_tokens(60, 10);
      const auto engine = bench.engine(toml);
      const auto seq = engine->open();
      prefill(*engine, seq, all);
      feed(*engine, seq, grown);
      engine->truncate(seq, keep);
      CHECK(engine->kv_len(seq) == keep);
      CHECK(engine->tokens(seq).size() == keep);
      auto kept = all;
      kept.insert(kept.end(), grown.begin(), grown.end());
      kept.resize(keep);
      const auto other = bench.engine(toml);
      const auto same = other->open();
      if (keep > 160) {
        prefill(*other, same, {kept.data(), 160});
        feed(*other, same, {kept.data() + 160, keep - 160});
      } else if (keep > 0) {
        prefill(*other, same, kept);
      }
      Logits got, want;
      if (keep == 0) {
        got.push_back(prefill(*engine, seq, after));
        want.push_back(prefill(*other, same, after));
      }
      for (const auto& logits : feed(*engine, seq, after)) got.push_back(logits);
      for (const auto& logits : feed(*other, same, after)) want.push_back(logits);
      check_equal(got, want);
    }
}

TEST_CASE("truncating one fork leaves the other alone") {
  Bench bench(8, 2);
  const std::string toml = cache(64) + kTopK;
  const auto prompt = some_tokens(160, 11), tokens = some_tokens(30, 12);
  const auto engine = bench.engine(toml);
  const auto a = engine->open();
  prefill(*engine, a, prompt);
  const auto b = engine->fork(a);
  engine->truncate(b, 90);
  feed(*engine, b, some_tokens(70, 13));
  check_equal(feed(*engine, a, tokens), fresh(bench, toml, prompt, tokens));
}

TEST_CASE("the cadence of a truncated sequence is that of a fresh one") {
  Bench bench(8, 2);
  const std::string toml = "[cache]\nblock_size = 16\nwindow_tokens = 20\ntoken_step = 4\n" + kTopK;
  const auto prompt = some_tokens(160, 14), grown = some_tokens(7, 15);
  // Choices were made for tokens 0 and 4; cut between them, the first is gone as well.
  for (const uint32_t kept : {0u, 4u, 5u, 6u}) {
    CAPTURE(kept);
    const auto engine = bench.engine(toml);
    const auto seq = engine->open();
    prefill(*engine, seq, prompt);
    feed(*engine, seq, grown);
    engine->truncate(seq, 160 + kept);
    std::vector<TokenId> all(grown.begin(), grown.begin() + kept);
    for (const TokenId token : some_tokens(12, 16)) all.push_back(token);
    auto want = fresh(bench, toml, prompt, all);
    want.erase(want.begin(), want.begin() + kept);
    check_equal(feed(*engine, seq, std::span(all).subspan(kept)), want);
  }
}

TEST_CASE("forks share blocks; closing the last holder frees them") {
  Bench bench(8, 2);
  const auto engine = bench.engine(cache(64) + kTopK + kCounted);
  const Storage& storage = *engine->pipeline().storage;
  const auto blocks = [&] { return probe(storage, 0); };
  const auto leases = [&] { return probe(storage, 1); };
  const auto root = engine->open();
  prefill(*engine, root, some_tokens(165, 17));
  CHECK(blocks() == 3 * 11);
  std::vector<SequenceId> forks;
  for (int i = 0; i < 8; ++i) forks.push_back(engine->fork(root));
  CHECK(blocks() == 3 * (10 + 9));  // ten full ones shared, an open one each
  for (const SequenceId seq : forks) feed(*engine, seq, some_tokens(5, static_cast<uint32_t>(seq)));
  CHECK(blocks() == 3 * (10 + 9));
  engine->truncate(forks[0], 40);  // the cut block becomes its own
  CHECK(blocks() == 3 * (10 + 9));
  engine->close(root);
  CHECK(blocks() == 3 * (10 + 8));
  for (size_t i = 1; i < forks.size(); ++i) engine->close(forks[i]);
  CHECK(blocks() == 3 * 3);
  engine->close(forks[0]);
  CHECK(blocks() == 0);
  CHECK(leases() == 0);
}

TEST_CASE("a stopped prompt is as long as what was done") {
  Bench bench(8, 2);
  const auto engine = bench.engine(cache(64) + kTopK);
  const auto seq = engine->open();
  const auto prompt = some_tokens(200, 18);
  Engine::PrefillHooks hooks;
  hooks.progress = [](uint32_t done, uint32_t total) {
    CHECK(total == 200);
    return done < 128;
  };
  CHECK(engine->prefill(seq, prompt, {}, hooks) == 128);
  CHECK(engine->kv_len(seq) == 128);
  const auto after = some_tokens(20, 19);
  check_equal(feed(*engine, seq, after),
              fresh(bench, cache(64) + kTopK, {prompt.data(), 128}, after));
}

TEST_CASE("what does not fit is refused and leaves the sequence as it was") {
  Bench bench(8, 2);
  EngineOptions options;
  options.max_context = 64;
  const auto engine = bench.engine(cache(64) + kTopK, options);
  const auto seq = engine->open();
  CHECK_THROWS_AS(prefill(*engine, seq, some_tokens(65)), Error);
  CHECK_THROWS_AS(prefill(*engine, seq, {}), Error);
  prefill(*engine, seq, some_tokens(64));
  CHECK_THROWS_AS(decode(*engine, seq, 1), Error);
  CHECK(engine->kv_len(seq) == 64);
  CHECK_THROWS_AS(engine->kv_len(seq + 1), Error);
}
