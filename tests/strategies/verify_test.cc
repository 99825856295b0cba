// Several tokens verified in one step, under every strategy: each is what it would have been fed
// alone, and those that are not accepted leave no trace.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategies/table.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kVocab = 300, kPrompt = 43;

EngineOptions options() {
  EngineOptions made;
  made.max_step_tokens = 64;
  return made;
}

// A prompt, and decoded tokens behind it.
SequenceId begun(Engine& engine, std::span<const TokenId> decoded) {
  const SequenceId seq = engine.open();
  prefill(engine, seq, some_tokens(kPrompt, 3));
  for (const TokenId token : decoded) decode(engine, seq, token);
  return seq;
}

// Logits of each token of a path, fed one at a time behind `decoded`.
Logits one_by_one(Engine& engine, const std::vector<TokenId>& decoded,
                  const std::vector<TokenId>& path) {
  const SequenceId seq = begun(engine, decoded);
  Logits out;
  for (const TokenId token : path) out.push_back(decode(engine, seq, token));
  engine.close(seq);
  return out;
}

// A tree of drafts: tokens, the parent of each.
struct Tree {
  std::vector<TokenId> tokens;
  std::vector<int32_t> parents;  // empty: a chain

  std::vector<TokenId> path_to(int32_t token) const {
    std::vector<TokenId> path;
    while (token >= 0) {
      path.insert(path.begin(), tokens[static_cast<size_t>(token)]);
      token = parents.empty() ? token - 1 : parents[static_cast<size_t>(token)];
    }
    return path;
  }
};

Logits verify(Engine& engine, SequenceId seq, const Tree& tree) {
  std::vector<float> logits(tree.tokens.size() * kVocab);
  const StepItem item{.seq = seq, .tokens = tree.tokens, .logits = logits, .parents = tree.parents};
  REQUIRE(engine.step({&item, 1})[0].text().empty());
  Logits out;
  for (size_t t = 0; t < tree.tokens.size(); ++t)
    out.emplace_back(logits.begin() + static_cast<long>(t * kVocab),
                     logits.begin() + static_cast<long>((t + 1) * kVocab));
  return out;
}

const Tree kTrees[] = {
    {{5, 17, 250, 3, 90, 11, 12}, {}},
    {{5, 17, 250, 3, 90, 11}, {-1, 0, 0, 2, -1, 4}},  // three leaves
    {{7}, {-1}},
};

}  // namespace

TEST_SUITE_BEGIN("strategies/verify");

TEST_CASE("verified tokens are those fed one at a time, rejected ones leave no trace") {
  const std::vector<TokenId> decoded{4, 8, 15};
  uint32_t n_verified = 0;
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (few_cases() && entry.is_variant) continue;
    Bench bench(8, 2, entry.head_dim);
    const auto engine = bench.engine(strategy_of(entry), options());
    const auto single = bench.engine(strategy_of(entry), options());
    if (!engine->cannot_verify(0).empty()) {
      const SequenceId seq = begun(*engine, decoded);
      const StepItem item{.seq = seq, .tokens = kTrees[0].tokens};
      const std::vector<ItemResult> results = engine->step({&item, 1});
      CHECK(results[0].text().find(engine->cannot_verify(0)) == 0);
      CHECK(!results[0].is_lost);
      CHECK(engine->kv_len(seq) == kPrompt + decoded.size());
      CHECK(max_difference(decode(*engine, seq, 9), one_by_one(*single, decoded, {9})[0]) == 0);
      continue;
    }
    ++n_verified;
    for (const Tree& tree : kTrees) {
      CAPTURE(tree.tokens.size());
      for (int32_t kept = -1; kept < std::ssize(tree.tokens); kept += 2) {
        CAPTURE(kept);
        const SequenceId seq = begun(*engine, decoded);
        const Logits got = verify(*engine, seq, tree);
        for (size_t t = 0; t < tree.tokens.size(); ++t) {
          const Logits want = one_by_one(*single, decoded, tree.path_to(static_cast<int32_t>(t)));
          CHECK(max_difference(got[t], want.back()) == 0);
        }
        CHECK(engine->kv_len(seq) == kPrompt + decoded.size());
        engine->accept(seq, kept);
        std::vector<TokenId> accepted = decoded;
        for (const TokenId token : tree.path_to(kept)) accepted.push_back(token);
        CHECK(engine->kv_len(seq) == kPrompt + accepted.size());
        const std::vector<TokenId> more{2, 33, 71, 5, 140, 6, 28, 299, 1, 60};
        Logits went_on;
        for (const TokenId token : more) went_on.push_back(decode(*engine, seq, token));
        CHECK(max_difference(went_on, one_by_one(*single, accepted, more)) == 0);
        engine->close(seq);
      }
    }
  }
  CHECK(n_verified >= 12);
}

TEST_CASE("a sequence with drafts can do nothing else, and closes with them") {
  Bench bench(8, 2);
  const auto engine = bench.engine(strategy_of(entries()[0]), options());
  const SequenceId seq = begun(*engine, {});
  verify(*engine, seq, kTrees[1]);
  const TokenId token[] = {1};
  const StepItem item{.seq = seq, .tokens = token};
  CHECK(engine->step({&item, 1})[0].text().find("accept()") != std::string::npos);
  CHECK_THROWS_AS(engine->fork(seq), Error);
  CHECK_THROWS_AS(engine->truncate(seq, 3), Error);
  CHECK_THROWS_AS(engine->accept(seq, 17), Error);  // no such token: the drafts are gone
  CHECK_THROWS_AS(engine->accept(seq, 0), Error);
  verify(*engine, seq, kTrees[1]);
  engine->close(seq);
  CHECK_THROWS_AS(engine->kv_len(seq), Error);
}

TEST_CASE("parents that come later, or reach beyond the step, are refused") {
  Bench bench(8, 2);
  const auto engine = bench.engine(strategy_of(entries()[0]), options());
  const SequenceId seq = begun(*engine, {});
  const auto text = [&](const Tree& tree) {
    const StepItem item{.seq = seq, .tokens = tree.tokens, .parents = tree.parents};
    return engine->step({&item, 1})[0].text();
  };
  CHECK(text({{1, 2}, {1, -1}}).find("does not come before it") != std::string::npos);
  CHECK(text({{1, 2}, {-2, 0}}).find("does not come before it") != std::string::npos);
  CHECK(text({{1, 2}, {-1}}).find("1 parents for 2 tokens") != std::string::npos);
  Tree wide;  // 40 leaves behind 2 tokens each
  for (int32_t i = 0; i < 42; ++i) {
    wide.tokens.push_back(i);
    wide.parents.push_back(i < 2 ? i - 1 : 1);
  }
  CHECK(text(wide).find("the paths of the drafts have 120 tokens") != std::string::npos);
  CHECK(max_difference(decode(*engine, seq, 9), one_by_one(*engine, {}, {9})[0]) == 0);
}
