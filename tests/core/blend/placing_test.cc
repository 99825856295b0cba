// K and V of chunks that are loaded a layer ahead of the one that is computed.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/core/blend/support.h"
#include "tests/support/forwarded_model.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

// A model whose feed-forward takes a while without a processor, as one on a device would.
class SleepingModel final : public ForwardedModel {
 public:
  using ForwardedModel::ForwardedModel;
  void ffn(uint32_t layer, float* h, uint32_t n) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ForwardedModel::ffn(layer, h, n);
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/blend/placing");

TEST_CASE("layers that are loaded ahead give the same, and the report says what was waited for") {
  for (const std::string& storage :
       {std::string("[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f16'\ntype_v = 'f16'\n"),
        std::string("[storage]\nplugin = 'kvasir.tiered'\ncached_blocks = 0\n")}) {
    CAPTURE(storage);
    Bench bench(8, 2);
    const auto engine = bench.engine(kBlendCache + storage, wide());
    BlendWorld world(*engine, *bench.tiny.model, kOrder, true, true);
    for (const BlendMode mode : {BlendMode::kRatio, BlendMode::kRandom, BlendMode::kReuse}) {
      CAPTURE(name(mode));
      BlendConfig config = config_of(mode, 0.3);
      std::vector<float> ahead(300), waits(300);
      const Blended first = world.blender.blend(world.prompt, config, 3, ahead);
      config.load_ahead = false;
      const Blended second = world.blender.blend(world.prompt, config, 3, waits);
      CHECK(ahead == waits);
      CHECK(decoded(*engine, first.seq) == decoded(*engine, second.seq));
      for (const Blended* blended : {&first, &second}) {
        const BlendReport& report = blended->report;
        REQUIRE(report.loads.size() == 3);
        CHECK(report.load_seconds() > 0);
        for (const LayerLoad& layer : report.loads) CHECK(layer.load > 0);
      }
      for (const LayerLoad& layer : second.report.loads) CHECK(layer.wait == layer.load);
      CHECK(second.report.overlap_share() == 0);
    }
  }
}

TEST_CASE("K and V that are placed and computed again are those of a prompt, on any thread") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  const std::vector<TokenId> tokens = some_tokens(200, 5);
  const SequenceId from = engine->open();
  prefill(*engine, from, tokens);
  const std::vector<uint32_t> all = up_to(200);
  std::map<uint32_t, std::pair<double, double>> times;
  std::vector<float> logits(300);
  for (const bool ahead : {true, false}) {
    times.clear();
    const SequenceId seq = engine->open();
    engine->begin_prompt(seq, 200);
    std::set<std::thread::id> threads;
    const Placing placing{.load =
                              [&](uint32_t layer, float* k, float* v) {
                                threads.insert(std::this_thread::get_id());
                                engine->read_kv(from, layer, all, k, v);
                              },
                          .ahead = ahead,
                          .loaded =
                              [&](uint32_t layer, double load, double wait) {
                                times[layer] = {load, wait};
                              }};
    const StepItem item{
        .seq = seq, .tokens = tokens, .logits = logits, .recompute = all, .placing = &placing};
    const auto results = engine->step({&item, 1});
    CHECK(results[0].text() == "");
    CHECK(threads.contains(std::this_thread::get_id()) == !ahead);
    CHECK(times.size() == 3);
    CHECK(engine->kv_len(seq) == 200);
    CHECK(engine->prompt_left(seq) == 0);
    for (uint32_t layer = 0; layer < 3; ++layer)
      CHECK(kv_of(*engine, seq, layer, kWidth) == kv_of(*engine, from, layer, kWidth));
    const SequenceId again = engine->open();
    CHECK(logits == prefill(*engine, again, tokens));
    engine->close(again);
    engine->close(seq);
  }
}

TEST_CASE("a layer that takes less to load than the one before to compute is hardly waited for") {
  Bench bench(8, 2);
  const SleepingModel model(*bench.tiny.model);
  const auto engine = bench.engine(model, kBlendCache, wide());
  const std::vector<TokenId> tokens = some_tokens(20, 5);
  const std::vector<uint32_t> some = {3, 7};
  for (const bool ahead : {true, false}) {
    CAPTURE(ahead);
    std::vector<double> loads, waits;
    const SequenceId seq = engine->open();
    engine->begin_prompt(seq, 20);
    const Placing placing{.load =
                              [&](uint32_t, float* k, float* v) {
                                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                std::fill_n(k, 20 * kWidth, 0.5f);
                                std::fill_n(v, 20 * kWidth, 0.5f);
                              },
                          .ahead = ahead,
                          .loaded =
                              [&](uint32_t, double load, double wait) {
                                loads.push_back(load);
                                waits.push_back(wait);
                              }};
    const StepItem item{.seq = seq, .tokens = tokens, .recompute = some, .placing = &placing};
    CHECK(engine->step({&item, 1})[0].text() == "");
    REQUIRE(loads.size() == 3);
    for (const double load : loads) CHECK(load > 0.09);
    const double waited = waits[1] + waits[2],
                 loaded = loads[1] + loads[2];  // none hides the first
    if (ahead)
      CHECK(waited < 0.5 * loaded);
    else
      CHECK(waited == loaded);
    engine->close(seq);
  }
}

TEST_CASE("what fails while a layer is loaded ends the sequence and nothing else") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  const std::vector<TokenId> tokens = some_tokens(20, 5);
  const std::vector<uint32_t> some = {3, 7};
  for (const bool ahead : {true, false})
    for (const uint32_t bad : {0u, 1u, 2u}) {
      const SequenceId seq = engine->open();
      engine->begin_prompt(seq, 20);
      const Placing placing{.load =
                                [&](uint32_t layer, float* k, float* v) {
                                  if (layer == bad) throw std::runtime_error("no such layer");
                                  std::fill_n(k, 20 * kWidth, 0.5f);
                                  std::fill_n(v, 20 * kWidth, 0.5f);
                                },
                            .ahead = ahead};
      const StepItem item{.seq = seq, .tokens = tokens, .recompute = some, .placing = &placing};
      const auto results = engine->step({&item, 1});
      CHECK(results[0].text() == "no such layer");
      CHECK(results[0].is_lost);
      engine->close(seq);
    }
  CHECK(prefill(*engine, engine->open(), tokens).size() == 300);
}

TEST_CASE("steps that place wrongly are refused") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kBlendCache, wide());
  const std::vector<TokenId> tokens = some_tokens(20, 5);
  const std::vector<uint32_t> some = {3, 7}, beyond = {3, 20}, back = {7, 3};
  const std::vector<int32_t> turn = {1};
  const auto nothing = [](uint32_t, float*, float*) {};
  const SequenceId seq = engine->open();
  const auto refusal = [&](const Placing& placing, const std::vector<uint32_t>& positions) {
    const StepItem item{.seq = seq, .tokens = tokens, .recompute = positions, .placing = &placing};
    return engine->step({&item, 1})[0].text();
  };
  CHECK(refusal({.load = nothing}, some).find("tokens of a prompt only") != std::string::npos);
  engine->begin_prompt(seq, 20);
  CHECK(refusal({.load = nothing}, beyond).find("position 20 is not") != std::string::npos);
  CHECK(refusal({.load = nothing}, back).find("position 3 is not ascending") != std::string::npos);
  CHECK(refusal({}, some).find("how to load") != std::string::npos);
  CHECK(refusal({.load = nothing, .turn = turn}, some).find("number for each token") !=
        std::string::npos);
  CHECK(engine->kv_len(seq) == 0);
}

TEST_SUITE_END();
