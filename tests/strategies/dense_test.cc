// A full budget is dense attention, and so is any budget while the context is shorter; half a
// budget is not, so that both can fail.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/strategies/table.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr double kBound = 1e-5;  // of the largest logit: f32 sums in another order

}  // namespace

TEST_SUITE_BEGIN("strategies/dense");

TEST_CASE("the table names every shipped preset and every shipped selector") {
  namespace fs = std::filesystem;
  const auto named = [](auto&& matches) {
    return std::any_of(entries().begin(), entries().end(), matches);
  };
  for (const auto& file : fs::directory_iterator(KVASIR_SOURCE_DIR "/configs/strategies")) {
    CAPTURE(file.path().string());
    CHECK(named([&](const Entry& entry) { return entry.preset == file.path().stem(); }));
  }
  for (const std::string& name : shipped_selectors()) {
    CAPTURE(name);
    const std::string id = "kvasir." + name;
    CHECK(named([&](const Entry& entry) {
      const auto selectors = strategy_of(entry).selectors;
      return std::any_of(selectors.begin(), selectors.end(),
                         [&](const PluginSection& s) { return s.plugin.value == id; });
    }));
  }
}

TEST_CASE("a full budget is dense attention") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    INFO(entry.why);
    const StrategyConfig strategy = strategy_of(entry, entry.full);
    const auto full = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    for (const uint32_t n_prompt : {0u, 1u, 7u, 130u}) {
      if (entry.is_variant && n_prompt != 130) continue;
      CAPTURE(n_prompt);
      const Logits got = run(*full, n_prompt, 20), want = run(*dense, n_prompt, 20);
      if (entry.full_is == Equal::kBits)
        CHECK(got == want);
      else
        CHECK(relative_difference(got, want) <= kBound);
    }
    const Engagement &e = full->decode_engagement(), &d = dense->decode_engagement();
    CHECK(e.fallbacks == 0);
    CHECK(e.tokens_attended == d.tokens_attended);
  }
}

TEST_CASE("a full budget is dense attention in the types that presets store, and in others") {
  // Keys that are kept before RoPE are rounded before it. The dense path over keys kept so is the
  // same, bit for bit; dense attention over rotated ones is as far away as roundings are.
  struct Stored {
    std::string type;
    double rounding;  // of the largest logit
  };
  KVASIR_FOR_EACH_ENTRY(entry) {
    for (const Stored& stored : {Stored{"f16", 2e-3}, {"q8_0", 0.05}}) {
      if (entry.is_variant && stored.type != "f16") continue;
      CAPTURE(stored.type);
      Bench bench(8, 2,
                  stored.type == "f16" ? entry.head_dim : 32);  // q8_0 takes 32 values together
      const StrategyConfig strategy = strategy_of(
          entry, entry.full + " storage.type_k=" + stored.type + " storage.type_v=" + stored.type);
      StrategyConfig dense = dense_of(strategy);
      const Logits got = run(*bench.engine(strategy), 70, 20);
      const Logits want = run(*bench.engine(dense), 70, 20);
      if (dense.cache.positions.value == Positions::kSlot) {
        dense.cache.positions.value = Positions::kTrue;
        const double rounded = relative_difference(got, run(*bench.engine(dense), 70, 20));
        CHECK(rounded > 0);
        CHECK(rounded < stored.rounding);
      }
      if (entry.full_is == Equal::kBits)
        CHECK(got == want);
      else
        CHECK(relative_difference(got, want) <= kBound);
    }
  }
}

TEST_CASE("a context shorter than its budget is dense, from the empty one on") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const StrategyConfig strategy = strategy_of(entry);
    const auto small = bench.engine(strategy), dense = bench.engine(dense_of(strategy));
    const uint32_t covered = std::min(entry.dense_up_to, 60u);
    for (const uint32_t n_prompt : {0u, 1u, covered / 2, covered - 1}) {
      if (entry.is_variant && n_prompt != covered / 2) continue;
      CAPTURE(n_prompt);
      CHECK(run(*small, n_prompt, covered - n_prompt) == run(*dense, n_prompt, covered - n_prompt));
    }
    CHECK(small->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("a small budget is not dense, and half of it is another one: the tests above can fail") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    if (entry.engages == Engages::kNever) continue;
    const StrategyConfig strategy = strategy_of(entry);
    const auto small = bench.engine(strategy), dense = bench.engine(dense_of(strategy)),
               half = bench.engine(strategy_of(entry, entry.half));
    const Logits whole = run(*small, 130, 20);
    CHECK(relative_difference(whole, run(*dense, 130, 20)) > 1e-3);
    CHECK(relative_difference(run(*half, 130, 20), whole) > 1e-3);
    CHECK(half->decode_engagement().tokens_attended < small->decode_engagement().tokens_attended);
    CHECK(small->decode_engagement().tokens_attended < dense->decode_engagement().tokens_attended);
  }
}
