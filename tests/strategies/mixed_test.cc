// Steps of mixed work under every strategy: what shares a step with a sequence does not change it,
// and a prompt read once for several strategies is as if each had read it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/strategies/table.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kVocab = 300;

EngineOptions options() {
  EngineOptions made;
  made.max_sequences = 4;
  made.max_step_tokens = 64;
  return made;
}

// A sequence with all it is to do, piece by piece: a prompt, decoded tokens, a further prompt.
struct Script {
  std::vector<TokenId> prompt;
  std::vector<uint32_t> pieces;  // of the prompt
  uint32_t n_decoded = 0;
  uint32_t starts_at = 0;  // step of the mix

  uint32_t n_turns() const { return static_cast<uint32_t>(pieces.size()) + n_decoded; }
  // The tokens of its turn.
  std::vector<TokenId> turn(uint32_t i) const {
    if (i >= pieces.size()) return {static_cast<TokenId>((i * 7 + prompt.size()) % kVocab)};
    uint32_t begin = 0;
    for (uint32_t p = 0; p < i; ++p) begin += pieces[p];
    return {prompt.begin() + begin, prompt.begin() + begin + pieces[i]};
  }
};

Script script(uint32_t n_prompt, uint32_t piece, uint32_t n_decoded, uint32_t starts_at) {
  Script made{some_tokens(n_prompt, n_prompt), {}, n_decoded, starts_at};
  for (uint32_t at = 0; at < n_prompt; at += piece)
    made.pieces.push_back(std::min(piece, n_prompt - at));
  return made;
}

// One sequence on its way through its script.
struct Player {
  const Script& script;
  SequenceId seq;
  uint32_t next = 0;
  std::vector<TokenId> tokens{};
  std::vector<float> logits = std::vector<float>(kVocab);
  Logits out{};

  bool done() const { return next == script.n_turns(); }
  StepItem item(Engine& engine) {
    if (next == 0 && !script.prompt.empty())
      engine.begin_prompt(seq, static_cast<uint32_t>(script.prompt.size()));
    tokens = script.turn(next++);
    return {.seq = seq, .tokens = tokens, .logits = logits};
  }
};

void play(Engine& engine, std::vector<Player>& players) {
  for (uint32_t step = 0;; ++step) {
    std::vector<StepItem> items;
    std::vector<Player*> playing;
    for (Player& player : players)
      if (!player.done() && step >= player.script.starts_at) {
        items.push_back(player.item(engine));
        playing.push_back(&player);
      }
    if (items.empty()) return;
    std::rotate(items.begin(), items.begin() + step % std::ssize(items), items.end());
    for (const ItemResult& result : engine.step(items)) REQUIRE(result.text().empty());
    for (Player* player : playing) player->out.push_back(player->logits);
  }
}

Logits alone(const Entry& entry, const Script& script) {
  Bench bench(8, 2, entry.head_dim);
  const auto engine = bench.engine(strategy_of(entry), options());
  Script at_once = script;
  at_once.starts_at = 0;
  std::vector<Player> one{{at_once, engine->open()}};
  play(*engine, one);
  return one[0].out;
}

void check_same(const Logits& got, const Logits& want) { CHECK(max_difference(got, want) == 0); }

}  // namespace

TEST_SUITE_BEGIN("strategies/mixed");

TEST_CASE("prompts in pieces beside decoded tokens are each sequence alone") {
  // Pieces of 1, 16 and 31 of prompts that end at different steps; one starts late, one without.
  const std::vector<Script> scripts{script(40, 16, 24, 0), script(70, 31, 12, 0),
                                    script(19, 1, 8, 3), script(0, 1, 20, 5)};
  KVASIR_FOR_EACH_ENTRY(entry) {
    if (few_cases() && entry.is_variant) continue;
    Bench bench(8, 2, entry.head_dim);
    const auto engine = bench.engine(strategy_of(entry), options());
    std::vector<Player> players;
    for (const Script& of : scripts) players.push_back({of, engine->open()});
    play(*engine, players);
    CHECK(engine->decode_engagement().fallbacks == 0);
    for (const Player& player : players) {
      CAPTURE(player.script.prompt.size());
      check_same(player.out, alone(entry, player.script));
    }
  }
}

TEST_CASE("a prompt read once serves dense attention and a strategy") {
  const Script reader = script(70, 13, 0, 0);
  uint32_t n_shared = 0;
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const StrategyConfig dense = dense_of(strategy_of(entry));
    const auto engine = bench.engine(dense, options());
    const StrategyId other = engine->add_strategy(bench.pipeline(strategy_of(entry)));
    if (!engine->can_follow(0, other)) {  // its prompts are sparse, or keys differ in rotation
      CHECK(
          (!entry.slice.empty() || engine->geometry(other).k_state != engine->geometry(0).k_state));
      continue;
    }
    ++n_shared;
    CHECK(engine->pipeline(0).storage == engine->pipeline(other).storage);
    const SequenceId lead = engine->open(), follow[] = {engine->open(other)};
    for (const SequenceId seq : {lead, follow[0]}) engine->begin_prompt(seq, 70);
    std::vector<float> logits(kVocab);
    for (uint32_t i = 0; i < reader.n_turns(); ++i) {
      const std::vector<TokenId> tokens = reader.turn(i);
      const StepItem item{.seq = lead, .tokens = tokens, .logits = logits, .followers = follow};
      const auto results = engine->step({&item, 1});
      REQUIRE(results[0].text().empty());
      REQUIRE(results[0].follower_errors[0] == nullptr);
    }
    CHECK(engine->kv_len(follow[0]) == 70);
    CHECK(engine->prefill_engagement(other).model_nanos == 0);
    // Both go on, in steps of both.
    const auto feed = [](Engine& of, std::span<const SequenceId> seqs) {
      std::vector<Logits> out(seqs.size());
      for (uint32_t i = 0; i < 12; ++i) {
        Logits got(seqs.size(), std::vector<float>(kVocab));
        const TokenId token[] = {static_cast<TokenId>(i * 11 % kVocab)};
        std::vector<StepItem> items;
        for (size_t s = 0; s < seqs.size(); ++s)
          items.push_back({.seq = seqs[s], .tokens = token, .logits = got[s]});
        for (const ItemResult& result : of.step(items)) REQUIRE(result.text().empty());
        for (size_t s = 0; s < seqs.size(); ++s) out[s].push_back(got[s]);
      }
      return out;
    };
    const SequenceId both[] = {lead, follow[0]};
    const auto got = feed(*engine, both);
    for (size_t s = 0; s < 2; ++s) {
      const auto solo = bench.engine(s == 0 ? dense : strategy_of(entry), options());
      std::vector<Player> one{{reader, solo->open()}};
      play(*solo, one);
      check_same(got[s], feed(*solo, std::span(&one[0].seq, 1))[0]);
    }
  }
  CHECK(n_shared >= 15);
}
