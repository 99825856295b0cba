// A prompt whose projections are given: what follows it is what follows the same prompt when a
// model projects it.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/error.h"
#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"

using namespace kvasir;
using namespace kvasir::test;

namespace {

constexpr uint32_t kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 16;
constexpr uint32_t kPrompt = 231, kSteps = 9;

float at(uint32_t layer, int32_t token, uint32_t head, uint32_t dim, uint32_t kind) {
  const double x = 1.7 * layer + 0.37 * token + 2.3 * head + 0.71 * dim + 5.1 * kind;
  return static_cast<float>(std::sin(x * x));
}

void project(uint32_t layer, int32_t token, float* q, float* k, float* v) {
  for (uint32_t i = 0; i < kQHeads * kDim; ++i) q[i] = at(layer, token, i / kDim, i % kDim, 0);
  for (uint32_t i = 0; k && i < kKvHeads * kDim; ++i) {
    k[i] = at(layer, token, i / kDim, i % kDim, 1);
    v[i] = at(layer, token, i / kDim, i % kDim, 2);
  }
}

void give(uint32_t layer, uint32_t first_pos, uint32_t n, float* q, float* k, float* v) {
  for (uint32_t i = 0; i < n; ++i)
    project(layer, static_cast<int32_t>(first_pos + i), q + i * kQHeads * kDim,
            k + i * kKvHeads * kDim, v + i * kKvHeads * kDim);
}

RopeConfig rope_of_all() {
  RopeConfig rope;
  rope.n_dims = kDim;
  return rope;
}

struct World {
  std::vector<std::vector<float>> decoded;  // outputs of attention, layer by layer and step by step
  bool records = false;
  PrescribedModel model{{kLayers, kQHeads, kKvHeads, kDim, kDim, 512, rope_of_all()},
                        project,
                        [this](uint32_t, std::span<const int32_t> tokens, const float* o) {
                          if (records) decoded.emplace_back(o, o + tokens.size() * kQHeads * kDim);
                        }};
  Bench bench;
  EngineOptions options;
  World() {
    options.max_context = 512;
    options.max_sequences = 3;
  }

  // The prompt, read or given in pieces of `chunk`, followed by the sequences of the others.
  static void read(Engine& engine, const std::vector<SequenceId>& seqs, uint32_t chunk,
                   bool is_given) {
    for (const SequenceId seq : seqs) engine.begin_prompt(seq, kPrompt);
    for (uint32_t pos = 0; pos < kPrompt; pos += chunk) {
      std::vector<TokenId> tokens(std::min(chunk, kPrompt - pos));
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(pos + i);
      StepItem item{.seq = seqs[0], .tokens = tokens, .followers = std::span(seqs).subspan(1)};
      if (is_given) item.given = give;
      const std::vector<ItemResult> results = engine.step({&item, 1});
      REQUIRE(results[0].text() == "");
      for (const std::exception_ptr& error : results[0].follower_errors) REQUIRE(error == nullptr);
    }
  }
  std::vector<std::vector<float>> decode(Engine& engine, SequenceId seq) {
    decoded.clear();
    records = true;
    std::vector<float> logits(1);
    for (uint32_t step = 0; step < kSteps; ++step) {
      const Engine::DecodeItem item{seq, static_cast<TokenId>(kPrompt + step)};
      engine.decode({&item, 1}, logits);
    }
    records = false;
    return decoded;
  }
};

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
    World world;
    const auto engine = world.bench.engine(world.model, toml, world.options);
    const SequenceId read = engine->open(), given = engine->open(), other = engine->open();
    World::read(*engine, {read}, 64, false);
    World::read(*engine, {given}, 64, true);
    World::read(*engine, {other}, 23, true);  // pieces do not matter
    CHECK(engine->kv_len(given) == kPrompt);
    const auto want = world.decode(*engine, read);
    CHECK(want.size() == kLayers * kSteps);
    CHECK(world.decode(*engine, given) == want);
    CHECK(world.decode(*engine, other) == want);
  }
}

TEST_CASE("no query of a given prompt is attended where nobody asks for mass") {
  World world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const SequenceId seq = engine->open();
  World::read(*engine, {seq}, 64, true);
  CHECK(engine->prefill_engagement().tokens_attended == 0);
  CHECK(engine->prefill_engagement().kv_bytes_read == 0);
  world.decode(*engine, seq);
  CHECK(engine->decode_engagement().tokens_attended > 0);
}

TEST_CASE("a given prompt is followed, and its followers choose as if they had read it") {
  World world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const StrategyId dense = engine->add_strategy(world.bench.pipeline(
      world.bench.strategy("[selector]\nplugin = 'dense'\n[cache]\nblock_size = 16\n")));
  REQUIRE(engine->can_follow(dense, 0));
  const SequenceId alone = engine->open(), leader = engine->open(dense), follower = engine->open();
  World::read(*engine, {alone}, 64, false);
  World::read(*engine, {leader, follower}, 64, true);
  CHECK(world.decode(*engine, follower) == world.decode(*engine, alone));
}

TEST_CASE("what votes on the last queries of a given prompt votes as if it had been read") {
  World world;
  const auto engine = world.bench.engine(world.model, kSnapKv, world.options);
  const SequenceId read = engine->open(), given = engine->open();
  World::read(*engine, {read}, 64, false);
  World::read(*engine, {given}, 64, true);
  CHECK(engine->kv_bytes(given) == engine->kv_bytes(read));
  CHECK(world.decode(*engine, given) == world.decode(*engine, read));
}

TEST_CASE("what evicts by the mass of all queries is shown some of a given prompt, and evicts") {
  World world;
  const auto engine = world.bench.engine(world.model, kH2o, world.options);
  const SequenceId seq = engine->open();
  World::read(*engine, {seq}, 64, true);
  // One query per piece, and those of the last piece: 231 - 3 x 64 of them. What is evicted at the
  // end of a piece is not seen by the next one.
  const Engagement& read = engine->prefill_engagement();
  CHECK(read.tokens_attended > 0);
  CHECK(read.tokens_considered <= kLayers * kKvHeads * (64 + 128 + 192 + kPrompt));
  CHECK(read.fallbacks == 0);
  const uint64_t all = uint64_t{kPrompt} * kLayers * kKvHeads * 2 * kDim * sizeof(float);
  CHECK(engine->kv_bytes(seq) < all / 2);
  CHECK(world.decode(*engine, seq).size() == kLayers * kSteps);
  CHECK(engine->decode_engagement().fallbacks == 0);
}

TEST_CASE("projections are given for a prompt, alone in a step and without logits") {
  World world;
  const auto engine = world.bench.engine(world.model, kQuest, world.options);
  const SequenceId seq = engine->open(), other = engine->open();
  const std::vector<TokenId> tokens{0, 1, 2};
  std::vector<float> logits(1);
  const auto error_of = [&](std::vector<StepItem> items) {
    return engine->step(items).at(0).text();
  };
  const StepItem item{.seq = seq, .tokens = tokens, .given = give};
  CHECK(error_of({{.seq = seq, .tokens = std::span(tokens).first(1), .given = give}})
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
