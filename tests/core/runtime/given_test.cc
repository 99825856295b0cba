// A prompt whose projections are given: what follows it is what follows the same prompt when a
// model projects it.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "tests/core/runtime/given_world.h"

using namespace kvasir;
using namespace kvasir::test;

namespace {

using From = GivenWorld::From;
constexpr uint32_t kLayers = GivenWorld::kLayers, kKvHeads = GivenWorld::kKvHeads;
constexpr uint32_t kPrompt = GivenWorld::kPrompt, kSteps = GivenWorld::kSteps;

const std::string kQuest =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 48\n[representative]\nplugin = 'minmax'\n"
    "[cache]\nblock_size = 16\nchunk_size = 64\nsink_tokens = 16\nwindow_tokens = 32\n";
const std::string kSnapKv =
    "[selector]\nplugin = 'snapkv'\nbudget_tokens = 64\n[cache]\nblock_size = 16\n"
    "chunk_size = 64\nsink_tokens = 0\nwindow_tokens = 16\nwindow_mode = 'prompt'\n";
const std::string kH2o =
    "[selector]\nplugin = 'h2o'\nhh_size = 32\nrecent_size = 16\n[cache]\nblock_size = 16\n"
    "chunk_size = 64\nsink_tokens = 0\nwindow_tokens = 1\non_fault = 'fail'\n";

}  // namespace

TEST_CASE("strategies that need no attention mass see a given prompt as one that was read") {
  const std::string dense =
      "[selector]\nplugin = 'dense'\n[cache]\nblock_size = 16\nchunk_size = 64\n";
  for (const std::string& toml : {dense, kQuest}) {
    CAPTURE(toml);
    GivenWorld world;
    const auto engine = world.bench.engine(world.model, toml, world.options);
    const SequenceId read = engine->open(), given = engine->open(), other = engine->open();
    world.read(*engine, {read}, 64, From::kModel);
    world.read(*engine, {given}, 64, From::kGiven);
    world.read(*engine, {other}, 23, From::kGiven);  // pieces do not matter
    CHECK(engine->kv_len(given) == kPrompt);
    const auto want = world.decode(*engine, read);
    CHECK(want.size() == kLayers * kSteps);
    CHECK(world.decode(*engine, given) == want);
    CHECK(world.decode(*engine, other) == want);
  }
}

TEST_CASE("no query of a given prompt is attended where nobody asks for mass") {
  GivenWorld world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 64, From::kGiven);
  CHECK(engine->prefill_engagement().tokens_attended == 0);
  CHECK(engine->prefill_engagement().kv_bytes_read == 0);
  world.decode(*engine, seq);
  CHECK(engine->decode_engagement().tokens_attended > 0);
}

TEST_CASE("a given prompt is followed, and its followers choose as if they had read it") {
  GivenWorld world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const StrategyId dense = engine->add_strategy(world.bench.pipeline(
      world.bench.strategy("[selector]\nplugin = 'dense'\n[cache]\nblock_size = 16\n")));
  REQUIRE(engine->can_follow(dense, 0));
  const SequenceId alone = engine->open(), leader = engine->open(dense), follower = engine->open();
  world.read(*engine, {alone}, 64, From::kModel);
  world.read(*engine, {leader, follower}, 64, From::kGiven);
  CHECK(world.decode(*engine, follower) == world.decode(*engine, alone));
}

TEST_CASE("what votes on the last queries of a given prompt votes as if it had been read") {
  GivenWorld world;
  const auto engine = world.bench.engine(world.model, kSnapKv, world.options);
  const SequenceId read = engine->open(), given = engine->open();
  world.read(*engine, {read}, 64, From::kModel);
  world.read(*engine, {given}, 64, From::kGiven);
  CHECK(engine->kv_bytes(given) == engine->kv_bytes(read));
  CHECK(world.decode(*engine, given) == world.decode(*engine, read));
}

TEST_CASE("what evicts by the mass of all queries is shown some of a given prompt, and evicts") {
  GivenWorld world;
  const auto engine = world.bench.engine(world.model, kH2o, world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 64, From::kGiven);
  // One query per piece, and those of the last piece: 231 - 3 x 64 of them. What is evicted at the
  // end of a piece is not seen by the next one.
  const Engagement& read = engine->prefill_engagement();
  CHECK(read.tokens_attended > 0);
  CHECK(read.tokens_considered <= kLayers * kKvHeads * (64 + 128 + 192 + kPrompt));
  CHECK(read.fallbacks == 0);
  const uint64_t all = uint64_t{kPrompt} * kLayers * kKvHeads * 2 * world.dim * sizeof(float);
  CHECK(engine->kv_bytes(seq) < all / 2);
  CHECK(world.decode(*engine, seq).size() == kLayers * kSteps);
  CHECK(engine->decode_engagement().fallbacks == 0);
}

TEST_CASE("projections are given for a prompt, alone in a step and without logits") {
  GivenWorld world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const SequenceId seq = engine->open(), other = engine->open();
  const std::vector<TokenId> tokens{0, 1, 2};
  std::vector<float> logits(1);
  const auto error_of = [&](std::vector<StepItem> items) {
    return engine->step(items).at(0).text();
  };
  const StepItem item{.seq = seq, .tokens = tokens, .given = world.give()};
  CHECK(error_of({{.seq = seq, .tokens = std::span(tokens).first(1), .given = world.give()}})
            .find("for tokens of a prompt only") != std::string::npos);
  engine->begin_prompt(seq, 3);
  engine->begin_prompt(other, 3);
  StepItem with_logits = item;
  with_logits.logits = logits;
  CHECK(error_of({with_logits}).find("without logits") != std::string::npos);
  CHECK(error_of({item, {.seq = other, .tokens = tokens}}).find("alone") != std::string::npos);
  CHECK(error_of({item}) == "");
  CHECK(engine->kv_len(seq) == 3);
}
