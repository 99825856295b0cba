// cache.dense_below_tokens: below it every strategy is dense attention, bit for bit, chooses
// nothing and gives nothing up; above it is what it is without the key.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBorder = 140, kPrompt = 130;  // a prompt that ends below it

StrategyConfig with_border(const Entry& entry, uint32_t border) {
  return strategy_of(entry, "cache.dense_below_tokens=" + std::to_string(border));
}

// What both of two engines say to the same tokens.
struct Said {
  Logits got, want;
  bool is_same() const { return got == want; }
  double difference() const { return relative_difference(got, want); }
};

// A strategy with the border, and dense attention: a sequence of each has read the same prompt,
// which ends below it.
struct Twins {
  Bench bench;
  std::unique_ptr<Engine> engine, dense;
  SequenceId seq, twin;

  explicit Twins(const Entry& entry) : bench(8, 2, entry.head_dim) {
    const StrategyConfig strategy = with_border(entry, kBorder);
    engine = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    seq = engine->open(), twin = dense->open();
    CHECK(read(some_tokens(kPrompt, 3)).is_same());
  }
  Said read(const std::vector<TokenId>& prompt) {
    return {{prefill(*engine, seq, prompt)}, {prefill(*dense, twin, prompt)}};
  }
  Said feed(uint32_t n) { return {test::feed(*engine, seq, n), test::feed(*dense, twin, n)}; }
  void truncate(uint32_t n) { engine->truncate(seq, n), dense->truncate(twin, n); }
};

}  // namespace

TEST_SUITE_BEGIN("strategies/dense_below");

TEST_CASE("below the border every strategy is dense and its selector is not asked") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const StrategyConfig strategy = with_border(entry, 1000);
    const auto below = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    for (const uint32_t n_prompt : {0u, 1u, 7u, kPrompt}) {
      if (entry.is_variant && n_prompt != kPrompt) continue;
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
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (entry.engages == Engages::kNever) continue;
    Twins twins(entry);
    CHECK(twins.feed(kBorder - 1 - kPrompt).is_same());
    const double above = twins.feed(16).difference();
    if (entry.engages == Engages::kSelects) CHECK(above > 1e-3);
    // Who chooses by a prompt's end only does so at the next one's.
    twins.read(some_tokens(40, 5));
    CHECK(twins.feed(8).difference() > 1e-3);
    CHECK(twins.engine->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("a prompt that ends above the border is what it is without one") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (!entry.slice.empty()) continue;  // its prompt begins below, where no slice chooses
    Bench bench(8, 2, entry.head_dim);
    const auto with = bench.engine(with_border(entry, kBorder));
    const auto without = bench.engine(strategy_of(entry));
    CHECK(run(*with, kBorder, 12) == run(*without, kBorder, 12));
  }
}

TEST_CASE("a fork may cross the border while its parent stays below") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Twins twins(entry);
    feed(*twins.engine, twins.engine->fork(twins.seq), 24);
    CHECK(twins.feed(kBorder - 1 - kPrompt).is_same());
  }
}

TEST_CASE("a cut back below the border is dense again") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (entry.rewinds == Rewinds::kNever) continue;
    Twins twins(entry);
    twins.feed(20);
    const uint32_t kept = entry.rewinds == Rewinds::kAnywhere ? 101 : kPrompt + 3;
    twins.truncate(kept);
    CHECK(twins.feed(kBorder - 1 - kept).is_same());
  }
}

TEST_CASE("what is reachable only until the next prompt is reachable again below the border") {
  Twins twins(entry_named("h2o, in tokens, masking"));
  const Said said = twins.feed(20);
  CHECK(said.got.back() != said.want.back());
  twins.truncate(kPrompt + 2);
  CHECK(twins.feed(7).is_same());
}
