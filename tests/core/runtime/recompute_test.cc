// Tokens computed again at their positions: what stands in storage and in records afterwards is
// what a fresh prompt leaves there, whichever of them were chosen.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nchunk_size = 32\nsink_tokens = 4\nwindow_tokens = 16\n";
const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 16\n"
    "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";
const std::string kOracle = "[selector]\nplugin = 'kvasir.oracle'\nbudget_tokens = 16\n";
const std::string kStreaming = "[selector]\nplugin = 'kvasir.streaming'\n";
const std::string kAsync = "[storage]\nplugin = 'kvasir.test.async_storage'\npool_blocks = 40\n";
// Records are made on the host, of copies.
const std::string kDevice =
    "[storage]\nplugin = 'kvasir.test.device_storage'\n[attention]\n"
    "plugin = 'kvasir.test.device_attention'\ninner = 'cpu'\n";
constexpr uint32_t kTokens = 75;  // blocks of 8, the last one open

EngineOptions options() {
  EngineOptions made;
  made.max_step_tokens = 128;
  return made;
}

void recompute(Engine& engine, SequenceId seq, const std::vector<uint32_t>& positions,
               const NarrowRecompute& narrow = {}) {
  const StepItem item{.seq = seq, .recompute = positions, .narrow = narrow};
  const auto results = engine.step({&item, 1});
  REQUIRE(results[0].text().empty());
}

// Largest difference per layer between what is stored at the positions and what a dense pass over
// the sequence computes there; looks without changing anything.
std::vector<double> stale(Engine& engine, SequenceId seq, const std::vector<uint32_t>& positions) {
  std::vector<double> worst(3);
  const SequenceId copy = engine.fork(seq);
  recompute(engine, copy, positions, [&](const RecomputedLayer& layer) {
    const size_t n = layer.positions.size() * 2 * 16;  // two kv heads of 16
    for (size_t i = 0; i < n; ++i)
      worst[layer.layer] =
          std::max({worst[layer.layer], double{std::abs(layer.k[i] - layer.old_k[i])},
                    double{std::abs(layer.v[i] - layer.old_v[i])}});
    return std::vector<uint32_t>(layer.positions.begin(), layer.positions.end());
  });
  engine.close(copy);
  return worst;
}

Logits continued(Engine& engine, SequenceId seq) {
  Logits out;
  for (uint32_t i = 0; i < 20; ++i)
    out.push_back(decode(engine, seq, static_cast<TokenId>(i * 13)));
  return out;
}

const std::vector<std::vector<uint32_t>> kSubsets = {
    up_to(kTokens), {0}, {kTokens - 1}, {7, 8, 9, 40}, {1, 3, 5, 7, 16, 24, 63, 64, 74}};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/recompute");

TEST_CASE("computing again what is right changes nothing, in any subset") {
  for (const std::string& strategy : {kTopK, kOracle, kStreaming})
    for (const std::string& storage : {std::string(), kAsync, kDevice})
      for (const auto& positions : kSubsets) {
        if (strategy == kOracle && storage == kDevice) continue;  // it reads keys as it chooses
        CAPTURE(strategy);
        CAPTURE(storage);
        CAPTURE(positions);
        Bench bench(8, 2);
        const auto engine = bench.engine(kCache + strategy + storage, options());
        const SequenceId plain = engine->open(), again = engine->open();
        for (const SequenceId seq : {plain, again}) prefill(*engine, seq, some_tokens(kTokens));
        recompute(*engine, again, positions);
        CHECK(engine->kv_len(again) == kTokens);
        for (const double difference : stale(*engine, again, up_to(kTokens)))
          CHECK(difference == 0);
        CHECK(max_difference(continued(*engine, again), continued(*engine, plain)) == 0);
      }
}

// Tokens decoded under a sparse strategy have other keys than a dense pass gives them.
TEST_CASE("all tokens computed again are the state of a fresh prompt") {
  for (const std::string& strategy : {kTopK, kOracle, kStreaming}) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    const auto engine = bench.engine(kCache + strategy, options());
    const auto tokens = some_tokens(kTokens);
    const SequenceId fresh = engine->open(), seq = engine->open();
    prefill(*engine, fresh, tokens);
    prefill(*engine, seq, std::span(tokens).first(50));
    for (uint32_t i = 50; i < kTokens; ++i) decode(*engine, seq, tokens[i]);
    const SequenceId twin = engine->fork(seq);
    const auto before = stale(*engine, seq, up_to(kTokens));
    CHECK(before[0] < 1e-5);  // the first layer sees tokens only
    CHECK(before[1] > 1e-3);
    CHECK(before[2] > 1e-3);
    recompute(*engine, seq, up_to(kTokens));
    for (const double difference : stale(*engine, seq, up_to(kTokens))) CHECK(difference == 0);
    CHECK(stale(*engine, twin, up_to(kTokens))[2] == before[2]);  // forks keep their blocks
    CHECK(max_difference(continued(*engine, seq), continued(*engine, fresh)) == 0);
  }
}

TEST_CASE("positions may be narrowed from layer to layer; logits are those of the last one left") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kTopK, options());
  const auto tokens = some_tokens(kTokens);
  const SequenceId seq = engine->open(), fresh = engine->open();
  prefill(*engine, seq, std::span(tokens).first(50));
  for (uint32_t i = 50; i < kTokens; ++i) decode(*engine, seq, tokens[i]);
  const std::vector<float> last = prefill(*engine, fresh, tokens);
  std::vector<size_t> asked;
  const std::vector<uint32_t> late = between(50, kTokens);
  std::vector<float> logits(300);
  const NarrowRecompute narrow = [&](const RecomputedLayer& layer) {
    asked.push_back(layer.positions.size());
    if (layer.layer == 0) return up_to(kTokens);
    return late;
  };
  const std::vector<uint32_t> all = up_to(kTokens);
  const StepItem item{.seq = seq, .logits = logits, .recompute = all, .narrow = narrow};
  REQUIRE(engine->step({&item, 1})[0].text().empty());
  CHECK(asked == std::vector<size_t>{kTokens, kTokens, late.size()});
  CHECK(max_difference(logits, last) < 1e-4);
  for (const double difference : stale(*engine, seq, up_to(kTokens))) CHECK(difference < 1e-5);
}

TEST_CASE("what cannot follow is refused with a sentence, and nothing is changed") {
  const auto refusal = [](Engine& engine, SequenceId seq, std::vector<uint32_t> positions) {
    const StepItem item{.seq = seq, .recompute = positions};
    const auto results = engine.step({&item, 1});
    CHECK(!results[0].is_lost);
    return results[0].text();
  };
  for (const std::string plugin : {"snapkv", "h2o", "tova", "infinigen"}) {
    CAPTURE(plugin);
    Bench bench(8, 2);
    const auto engine = bench.engine(
        kCache + "[selector]\nplugin = 'kvasir." + plugin + "'\nbudget_tokens = 16\n", options());
    const SequenceId seq = engine->open(), twin = engine->open();
    for (const SequenceId of : {seq, twin}) prefill(*engine, of, some_tokens(kTokens));
    const std::string text = refusal(*engine, seq, {3, 4});
    CAPTURE(text);
    CHECK(text.find("kvasir." + plugin) == 0);
    CHECK(text.find("read the prompt anew") != std::string::npos);
    CHECK(max_difference(continued(*engine, seq), continued(*engine, twin)) < 1e-4);
  }
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + kTopK, options());
  const SequenceId seq = engine->open();
  prefill(*engine, seq, some_tokens(kTokens));
  CHECK(refusal(*engine, seq, {3, 3}).find("not ascending") != std::string::npos);
  CHECK(refusal(*engine, seq, {kTokens}).find("not in 0..") != std::string::npos);
  engine->begin_prompt(seq, 5);
  CHECK(refusal(*engine, seq, {3}).find("prompt is not read whole") != std::string::npos);
}
