// Blended prompts against the pass in double of oracle.h, and against plain prompts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "tests/core/blend/oracle.h"
#include "tests/core/blend/support.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::vector<uint32_t> kOtherOrder = {1, 3, 4, 2, 0};

// Largest difference from the oracle's rows, as a share of the largest number there.
double apart(std::span<const float> got, const std::vector<Row>& want) {
  double worst = 0, size = 0;
  for (size_t pos = 0; pos < want.size(); ++pos)
    for (size_t i = 0; i < want[pos].size(); ++i) {
      worst = larger_or_nan(worst, std::abs(want[pos][i] - got[pos * want[pos].size() + i]));
      size = std::max(size, std::abs(want[pos][i]));
    }
  return worst / size;
}

double apart(std::span<const float> got, const std::vector<double>& want) {
  return apart(got, std::vector<Row>{want});
}

}  // namespace

TEST_SUITE_BEGIN("core/blend/blend");

TEST_CASE("a blend stores and answers what a pass in double precision does") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  for (const auto& order : {kOrder, kOtherOrder})
    for (const auto& [has_bos, behind_bos] : {std::pair{false, false}, {true, false}, {true, true}})
      for (const double ratio : {0.0, 0.1, 0.4}) {
        CAPTURE(order);
        CAPTURE(has_bos);
        CAPTURE(behind_bos);
        CAPTURE(ratio);
        BlendWorld world(*engine, *bench.tiny.model, order, has_bos, behind_bos);
        std::vector<float> logits(300);
        const auto mode = ratio == 0 ? BlendMode::kReuse : BlendMode::kRatio;
        const Blended blended =
            world.blender.blend(world.prompt, config_of(mode, ratio), 0, logits);
        BlendOracle oracle(*bench.tiny.model);
        BlendOracle::Wanted wanted{world.prompt.lead, {},   world.prompt.question,
                                   behind_bos,        true, {}};
        for (const uint32_t i : order) wanted.chunks.push_back(some_chunks()[i]);
        if (ratio > 0) wanted.counts = blended.report.recomputed;
        CHECK(apart(logits, oracle.blend(wanted)) < 1e-5);
        for (uint32_t layer = 0; layer < 3; ++layer) {
          const auto [k, v] = kv_of(*engine, blended.seq, layer, kWidth);
          CHECK(oracle.keys()[layer].size() == world.plain.size());
          CHECK(apart(k, oracle.keys()[layer]) < 1e-5);
          CHECK(apart(v, oracle.values()[layer]) < 1e-5);
        }
        engine->close(blended.seq);
      }
}

TEST_CASE("without correction keys keep the positions of their chunk, and the answer shows it") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  std::vector<float> logits(300), corrected(300);
  world.blender.blend(world.prompt, config_of(BlendMode::kReuseUncorrected), 0, logits);
  world.blender.blend(world.prompt, config_of(BlendMode::kReuse), 0, corrected);
  BlendOracle oracle(*bench.tiny.model);
  BlendOracle::Wanted wanted{world.prompt.lead, {}, world.prompt.question, true, false, {}};
  for (const uint32_t i : kOrder) wanted.chunks.push_back(some_chunks()[i]);
  CHECK(apart(logits, oracle.blend(wanted)) < 1e-5);
  CHECK(max_difference(logits, corrected) > 1e-3);
}

TEST_CASE("at ratio 1 a blend is a plain prompt, bit for bit") {
  for (const std::string& storage :
       {std::string(), std::string("[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f16'\n"
                                   "type_v = 'f16'\n")})
    for (const auto& [has_bos, behind_bos] :
         {std::pair{false, false}, {true, false}, {true, true}}) {
      CAPTURE(storage);
      CAPTURE(has_bos);
      CAPTURE(behind_bos);
      Bench bench(8, 2);
      const auto engine = bench.engine(kBlendCache + storage, wide());
      BlendWorld world(*engine, *bench.tiny.model, kOrder, has_bos, behind_bos);
      std::vector<float> logits(300);
      const SequenceId plain = engine->open();
      const std::vector<float> want = prefill(*engine, plain, world.plain);
      const Blended blended =
          world.blender.blend(world.prompt, config_of(BlendMode::kRatio, 1), 0, logits);
      CHECK(logits == want);
      for (uint32_t layer = 0; layer < 3; ++layer)
        CHECK(kv_of(*engine, blended.seq, layer, kWidth) == kv_of(*engine, plain, layer, kWidth));
      CHECK(decoded(*engine, blended.seq) == decoded(*engine, plain));
    }
}

TEST_CASE("full and prefix are plain prompts, too; prefix reads what is behind the first chunk") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  for (const bool behind_bos : {true, false}) {
    CAPTURE(behind_bos);
    BlendWorld world(*engine, *bench.tiny.model, kOrder, true, behind_bos);
    const SequenceId plain = engine->open();
    const std::vector<float> want = prefill(*engine, plain, world.plain);
    for (const BlendMode mode : {BlendMode::kFull, BlendMode::kPrefix}) {
      CAPTURE(name(mode));
      std::vector<float> logits(300);
      const Blended blended = world.blender.blend(world.prompt, config_of(mode), 0, logits);
      CHECK(logits == want);
      const bool reuses = mode == BlendMode::kPrefix && behind_bos;
      const uint32_t n = world.n_chunk_tokens - (reuses ? 41 : 0);
      CHECK(blended.report.recomputed == std::vector<uint32_t>(3, n));
      CHECK(blended.report.reason.empty() == (mode == BlendMode::kFull || reuses));
      engine->close(blended.seq);
    }
    CHECK(decoded(*engine, plain).size() == 12 * 300);
    engine->close(plain);
  }
}

TEST_CASE("deviation is 0 in the first layer and of a first chunk, and nowhere else") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  const SequenceId plain = engine->open();
  prefill(*engine, plain, std::span(world.plain).first(world.n_context));
  const SequenceId reused = world.blender.place(world.prompt, BlendMode::kReuse);
  const SequenceId unturned = world.blender.place(world.prompt, BlendMode::kReuseUncorrected);
  const auto deviation = world.blender.deviations(world.prompt, reused, plain);
  REQUIRE(deviation.size() == 3);
  for (const double d : deviation[0]) CHECK(d < 2e-6);
  const uint32_t first = 41;
  for (uint32_t layer = 0; layer < 3; ++layer)
    for (uint32_t i = 0; i < first; ++i) CHECK(deviation[layer][i] == 0);
  for (uint32_t layer = 1; layer < 3; ++layer)
    for (uint32_t i = first; i < world.n_chunk_tokens; ++i) CHECK(deviation[layer][i] > 1e-3);
  const auto wrong = world.blender.deviations(world.prompt, unturned, plain);
  for (uint32_t i = first; i < world.n_chunk_tokens; ++i) CHECK(wrong[0][i] > 1e-2);
}

TEST_CASE("random tokens are a draw of the seed, the oracle's come from a full pass") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  const auto logits_of = [&](const BlendConfig& config, uint64_t seed) {
    std::vector<float> logits(300);
    engine->close(world.blender.blend(world.prompt, config, seed, logits).seq);
    return logits;
  };
  const BlendConfig random = config_of(BlendMode::kRandom, 0.2);
  CHECK(logits_of(random, 1) == logits_of(random, 1));
  CHECK(logits_of(random, 1) != logits_of(random, 2));
  CHECK(logits_of(random, 1) != logits_of(config_of(BlendMode::kRatio, 0.2), 1));
  // The layer before the last one is the check layer: the oracle sees beyond it.
  CHECK(logits_of(config_of(BlendMode::kOracle, 0.2), 1) !=
        logits_of(config_of(BlendMode::kRatio, 0.2), 1));
  BlendConfig last = config_of(BlendMode::kOracle, 0.2), measured = last;
  last.check_layer = measured.check_layer = 2;  // nothing is left to see
  measured.mode = BlendMode::kRatio;
  CHECK(logits_of(last, 1) == logits_of(measured, 1));
}

TEST_CASE("blocks of a blend never pose as those of the plain prompt, nor it as them") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide()), apart = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  std::vector<float> logits(300);
  const SequenceId lone = apart->open();
  prefill(*apart, lone, world.plain);
  for (const BlendConfig& config :
       {config_of(BlendMode::kReuse), config_of(BlendMode::kRatio, 0.3)}) {
    const SequenceId before = engine->open();
    prefill(*engine, before, world.plain);
    const SequenceId blended = world.blender.blend(world.prompt, config, 0, logits).seq;
    const auto k_and_v = kv_of(*engine, blended, 2, kWidth);
    const SequenceId after = engine->open();
    prefill(*engine, after, world.plain);
    for (uint32_t layer = 0; layer < 3; ++layer)
      for (const SequenceId plain : {before, after})
        CHECK(kv_of(*engine, plain, layer, kWidth) == kv_of(*apart, lone, layer, kWidth));
    CHECK(kv_of(*engine, blended, 2, kWidth) == k_and_v);
    CHECK(k_and_v != kv_of(*apart, lone, 2, kWidth));
    for (const SequenceId seq : {before, blended, after}) engine->close(seq);
  }
}

TEST_CASE("a chunk is read once, and may stand in a prompt twice") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, {0, 1, 0}, true, true);
  CHECK(world.prompt.chunks[0] == world.prompt.chunks[2]);
  std::vector<float> logits(300);
  world.blender.blend(world.prompt, config_of(BlendMode::kRatio, 1), 0, logits);
  CHECK(logits == prefill(*engine, engine->open(), world.plain));
}

TEST_CASE("the controller reads few tokens as a plain prompt and says why it chose") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  std::vector<float> logits(300);
  BlendConfig config = config_of(BlendMode::kAuto);
  const BlendReport few = world.blender.blend(world.prompt, config, 0, logits).report;
  CHECK(few.mode == BlendMode::kFull);
  CHECK(few.reason.find("min_tokens = 256") != std::string::npos);
  config.min_tokens = 0;
  const BlendReport report = world.blender.blend(world.prompt, config, 0, logits).report;
  CHECK(report.mode == BlendMode::kRatio);
  CHECK(report.reason.find("loads in") != std::string::npos);
  CHECK(report.ratio >= 0.15);
  REQUIRE(report.tier);
  CHECK(*report.tier == ChunkTier::kMemory);
  REQUIRE(report.tiers.size() == 1);
  CHECK(report.tiers[0].load_layer > 0);
  // What it chose at the check layer is what it did from there on.
  std::vector<float> fixed(300);
  const BlendReport same =
      world.blender.blend(world.prompt, config_of(BlendMode::kRatio, report.ratio), 0, fixed)
          .report;
  CHECK(same.recomputed == report.recomputed);
  CHECK(fixed == logits);
}

TEST_CASE("what cannot be is refused with a sentence") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  const auto refusal = [&](BlendPrompt prompt, BlendConfig config) {
    return error_of([&] { world.blender.blend(prompt, config, 0, {}); });
  };
  BlendPrompt prompt = world.prompt;
  prompt.question.clear();
  CHECK(refusal(prompt, {}).find("question is empty") != std::string::npos);
  prompt = world.prompt;
  prompt.chunks.clear();
  CHECK(refusal(prompt, {}).find("no chunks") != std::string::npos);
  prompt.chunks = {9};
  CHECK(refusal(prompt, {}).find("no chunk 9") != std::string::npos);
  BlendConfig config;
  config.check_layer = 3;
  CHECK(refusal(world.prompt, config).find("the model has 3 layers") != std::string::npos);
  CHECK(error_of([&] { world.blender.chunks().add({}); }).find("chunk is empty") !=
        std::string::npos);
  EngineOptions narrow;
  narrow.max_step_tokens = 32;
  const auto small = bench.engine(kBlendCache, narrow);
  BlendWorld in_small(*small, *bench.tiny.model, kOrder, true, true);
  CHECK(error_of([&] {
          in_small.blender.blend(in_small.prompt, {}, 0, {});
        }).find("the engine was made for 32") != std::string::npos);
  std::vector<float> logits(300);  // what needs no step of that size goes on
  in_small.blender.blend(in_small.prompt, config_of(BlendMode::kReuse), 0, logits);
}

TEST_CASE("what stops a blend leaves no sequence behind") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
  for (const BlendMode mode : {BlendMode::kFull, BlendMode::kPrefix, BlendMode::kRatio,
                               BlendMode::kOracle, BlendMode::kReuse}) {
    const SequenceId before = engine->open();
    uint32_t n_calls = 0;
    const auto stop = [&] {
      if (++n_calls == 2) throw std::runtime_error("stopped");
    };
    std::vector<float> logits(300);
    CHECK_THROWS_WITH(world.blender.blend(world.prompt, config_of(mode), 0, logits, stop),
                      "stopped");
    const SequenceId after = engine->open();
    CHECK(after > before + 1);
    for (SequenceId seq = before + 1; seq < after; ++seq) CHECK_THROWS(engine->kv_len(seq));
  }
}
