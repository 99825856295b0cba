// cache.dense_below_tokens: below it every strategy is dense attention, bit for bit, chooses
// nothing and gives nothing up; above it is what it is without the key.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBorder = 140, kPrompt = 130;  // a prompt that ends below it

StrategyConfig with_border(const Row& row, uint32_t border) {
  return strategy_of(row, "cache.dense_below_tokens=" + std::to_string(border));
}
// The next n tokens of a generation, which depend on where it stands.
Logits feed(Engine& engine, SequenceId seq, uint32_t n) {
  Logits out;
  for (uint32_t i = 0; i < n; ++i)
    out.push_back(decode(engine, seq, static_cast<TokenId>((engine.kv_len(seq) * 7 + 5) % 300)));
  return out;
}
Logits run(Engine& engine, uint32_t n_prompt, uint32_t n_decoded) {
  const auto seq = engine.open();
  Logits out;
  if (n_prompt > 0) out.push_back(prefill(engine, seq, some_tokens(n_prompt, 3)));
  for (auto& logits : feed(engine, seq, n_decoded)) out.push_back(std::move(logits));
  engine.close(seq);
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("strategies/dense_below");

TEST_CASE("below the border every strategy is dense and its selector is not asked") {
  KVASIR_FOR_EACH_ROW(row) {
    Bench bench(8, 2, row.head_dim);
    const StrategyConfig strategy = with_border(row, 1000);
    const auto below = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    for (const uint32_t n_prompt : {0u, 1u, 7u, kPrompt}) {
      if (row.is_variant && n_prompt != kPrompt) continue;
      CAPTURE(n_prompt);
      CHECK(run(*below, n_prompt, 20) == run(*dense, n_prompt, 20));
    }
    for (const Engagement* e : {&below->prefill_engagement(), &below->decode_engagement()}) {
      CHECK(e->selections == 0);
      CHECK(e->fallbacks == 0);
    }
    CHECK(below->decode_engagement().tokens_attended == dense->decode_engagement().tokens_attended);
  }
}

TEST_CASE("a sequence that grows across the border is dense up to it, and sparse from there") {
  KVASIR_FOR_EACH_ROW(row) {
    if (row.engages == Engages::kNever) continue;
    Bench bench(8, 2, row.head_dim);
    const StrategyConfig strategy = with_border(row, kBorder);
    const auto engine = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    const auto seq = engine->open(), twin = dense->open();
    const std::vector<TokenId> prompt = some_tokens(kPrompt, 3);
    CHECK(prefill(*engine, seq, prompt) == prefill(*dense, twin, prompt));
    const uint32_t n_below = kBorder - 1 - kPrompt;
    CHECK(feed(*engine, seq, n_below) == feed(*dense, twin, n_below));
    const double above = relative_difference(feed(*engine, seq, 16), feed(*dense, twin, 16));
    if (row.engages == Engages::kSelects) CHECK(above > 1e-3);
    // Who chooses by a prompt's end only does so at the next one's.
    const std::vector<TokenId> next = some_tokens(40, 5);
    prefill(*engine, seq, next), prefill(*dense, twin, next);
    CHECK(relative_difference(feed(*engine, seq, 8), feed(*dense, twin, 8)) > 1e-3);
    CHECK(engine->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("a prompt that ends above the border is what it is without one") {
  KVASIR_FOR_EACH_ROW(row) {
    if (!row.slice.empty()) continue;  // its prompt begins below, where no slice chooses
    Bench bench(8, 2, row.head_dim);
    const auto with = bench.engine(with_border(row, kBorder));
    const auto without = bench.engine(strategy_of(row));
    CHECK(run(*with, kBorder, 12) == run(*without, kBorder, 12));
  }
}

TEST_CASE("a fork may cross the border while its parent stays below") {
  KVASIR_FOR_EACH_ROW(row) {
    Bench bench(8, 2, row.head_dim);
    const StrategyConfig strategy = with_border(row, kBorder);
    const auto engine = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    const auto parent = engine->open(), twin = dense->open();
    const std::vector<TokenId> prompt = some_tokens(kPrompt, 3);
    prefill(*engine, parent, prompt), prefill(*dense, twin, prompt);
    const auto child = engine->fork(parent);
    feed(*engine, child, 24);
    const uint32_t n_below = kBorder - 1 - kPrompt;
    CHECK(feed(*engine, parent, n_below) == feed(*dense, twin, n_below));
  }
}

TEST_CASE("a cut back below the border is dense again") {
  KVASIR_FOR_EACH_ROW(row) {
    if (row.rewinds == Rewinds::kNever) continue;
    Bench bench(8, 2, row.head_dim);
    const StrategyConfig strategy = with_border(row, kBorder);
    const auto engine = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    const auto seq = engine->open(), twin = dense->open();
    const std::vector<TokenId> prompt = some_tokens(kPrompt, 3);
    prefill(*engine, seq, prompt), prefill(*dense, twin, prompt);
    feed(*engine, seq, 20), feed(*dense, twin, 20);
    const uint32_t kept = row.rewinds == Rewinds::kAnywhere ? 101 : kPrompt + 3;
    engine->truncate(seq, kept), dense->truncate(twin, kept);
    const uint32_t n_below = kBorder - 1 - kept;
    CHECK(feed(*engine, seq, n_below) == feed(*dense, twin, n_below));
  }
}

TEST_CASE("what is reachable only until the next prompt is reachable again below the border") {
  Bench bench(8, 2);
  for (const Row& row : rows()) {
    if (row.name != "h2o, in tokens, masking") continue;
    const StrategyConfig strategy = with_border(row, kBorder);
    const auto engine = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    const auto seq = engine->open(), twin = dense->open();
    const std::vector<TokenId> prompt = some_tokens(kPrompt, 3);
    prefill(*engine, seq, prompt), prefill(*dense, twin, prompt);
    const Logits masked = feed(*engine, seq, 20), whole = feed(*dense, twin, 20);
    CHECK(masked.back() != whole.back());
    engine->truncate(seq, kPrompt + 2), dense->truncate(twin, kPrompt + 2);
    CHECK(feed(*engine, seq, 7) == feed(*dense, twin, 7));
    return;
  }
  FAIL("the table has no such row");
}
