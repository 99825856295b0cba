// What a storage is told of its blocks (kvasir.block-heat/1), against softmax and scores in double.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "tests/core/runtime/given_world.h"
#include "tests/plugins/fakes/told_heat.h"

using namespace kvasir;
using namespace kvasir::test;

namespace {

using From = GivenWorld::From;
constexpr uint32_t kLayers = GivenWorld::kLayers, kQHeads = GivenWorld::kQHeads;
constexpr uint32_t kKvHeads = GivenWorld::kKvHeads, kGroup = kQHeads / kKvHeads;
constexpr uint32_t kBlock = 16, kPrompt = GivenWorld::kPrompt;

const std::string kCache =
    "[cache]\nblock_size = 16\nchunk_size = 64\nsink_tokens = 16\nwindow_tokens = 32\n";
const std::string kTopK =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 48\n[representative]\nplugin = 'mean'\n"
    "dtype = 'f32'\n";
const std::string kInfLlm =
    "[selector]\nplugin = 'infllm'\ntopk = 3\nexc_block_size = 32\n[representative]\n"
    "plugin = 'dynamic'\nmass = 'window'\nrepr_topk = 2\n";

std::string storage(uint32_t wants, const std::string& more = "") {
  return "[storage]\nplugin = 'kvasir.test.heat_storage'\nwants = " + std::to_string(wants) + "\n" +
         more;
}

struct World : GivenWorld {
  World() : GivenWorld(16, false) {
    options.on_attend = [this](uint32_t layer, uint64_t, uint32_t head,
                               std::span<const uint32_t> tokens) {
      attended[{layer, head}].assign(tokens.begin(), tokens.end());
    };
  }
  std::vector<float> q(uint32_t layer, uint32_t pos) const {
    std::vector<float> out(size_t{kQHeads} * dim), k(size_t{kKvHeads} * dim), v(k.size());
    project(layer, static_cast<int32_t>(pos), out.data(), k.data(), v.data());
    return out;
  }
  double logit(uint32_t layer, const std::vector<float>& query, uint32_t q_head,
               uint32_t token) const {
    std::vector<float> unused(size_t{kQHeads} * dim), k(size_t{kKvHeads} * dim), v(k.size());
    project(layer, static_cast<int32_t>(token), unused.data(), k.data(), v.data());
    double dot = 0;
    for (uint32_t d = 0; d < dim; ++d)
      dot += double{query[q_head * dim + d]} * double{k[q_head / kGroup * dim + d]};
    return dot / std::sqrt(static_cast<double>(dim));
  }
  // Mass of each block that the query at `pos` attended, as the mean over query heads.
  std::map<uint32_t, double> mass(uint32_t layer, uint32_t pos) const {
    const std::vector<float> query = q(layer, pos);
    std::map<uint32_t, double> out;
    for (uint32_t head = 0; head < kQHeads; ++head) {
      double sum = 0;
      std::map<uint32_t, double> of_block;
      for (const uint32_t token : attended.at({layer, head / kGroup})) {
        const double weight = std::exp(logit(layer, query, head, token));
        sum += weight;
        of_block[token / kBlock] += weight;
      }
      for (const auto& [block, weight] : of_block) out[block] += weight / sum / kQHeads;
    }
    return out;
  }
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> attended;
};

ToldHeat& told(Engine& engine) {
  const void* table = engine.pipeline().storage->extension(kToldHeatExtension);
  REQUIRE(table != nullptr);
  return *static_cast<ToldHeat*>(const_cast<void*>(table));  // NOLINT: the test's own
}

// What is told while the token at `pos` is decoded, layer by layer.
const std::vector<std::vector<ToldHeat::Block>>& told_of(Engine& engine, SequenceId seq,
                                                         uint32_t pos) {
  std::vector<float> logits(1);
  const Engine::DecodeItem item{seq, static_cast<TokenId>(pos)};
  told(engine).calls.clear();
  engine.decode({&item, 1}, logits);
  REQUIRE(told(engine).calls.size() == kLayers);
  return told(engine).calls;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/heat");

TEST_CASE("a storage that wants mass is told that of every sealed block that a step attended") {
  World world;
  const auto engine =
      world.bench.engine(world.model, kCache + kTopK + storage(KVASIR_HEAT_MASS), world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 64, From::kModel);
  CHECK(told(*engine).calls.empty());  // a dense prompt needs every block alike
  for (uint32_t step = 0; step < 3; ++step) {
    const uint32_t pos = kPrompt + step;
    const auto& calls = told_of(*engine, seq, pos);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::map<uint32_t, double> want = world.mass(layer, pos);
      CHECK(want.size() < kPrompt / kBlock);  // it chose
      want.erase(pos / kBlock);               // the open block
      CHECK(calls[layer].size() == want.size());
      for (const ToldHeat::Block& block : calls[layer]) {
        CHECK(block.layer == layer);
        REQUIRE(want.count(block.block) == 1);
        CHECK(double{block.value} == doctest::Approx(want[block.block]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("where a selector chooses for prompts, their mass is told, slice by slice") {
  World world;
  const auto engine =
      world.bench.engine(world.model, kCache + kInfLlm + storage(KVASIR_HEAT_MASS), world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 64, From::kModel);
  const ToldHeat& heat = told(*engine);
  CHECK(heat.calls.size() > kLayers * kPrompt / 64);
  for (const auto& call : heat.calls) {
    double sum = 0;
    for (const ToldHeat::Block& block : call) {
      CHECK(block.value >= 0.0f);
      sum += double{block.value};
    }
    CHECK(sum <= 1.0 + 1e-5);
  }
}

TEST_CASE("a storage that wants scores is told how far below the best each candidate is") {
  World world;
  const auto engine = world.bench.engine(
      world.model, kCache + "gqa_reduce = 'max'\n" + kTopK + storage(KVASIR_HEAT_SCORE),
      world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 64, From::kModel);
  CHECK(told(*engine).calls.empty());
  const auto& calls = told_of(*engine, seq, kPrompt);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<float> query = world.q(layer, kPrompt);
    // The sink is block 0; the window begins at 232 - 32 = 200, in block 12.
    std::map<uint32_t, double> want;
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      std::map<uint32_t, double> score;
      for (uint32_t block = 1; block < 12; ++block)
        for (uint32_t g = 0; g < kGroup; ++g) {
          double mean = 0;
          for (uint32_t t = block * kBlock; t < (block + 1) * kBlock; ++t)
            mean += world.logit(layer, query, head * kGroup + g, t) / kBlock;
          score[block] = g == 0 ? mean : std::max(score[block], mean);
        }
      double best = -1e30;
      for (const auto& [block, value] : score) best = std::max(best, value);
      for (const auto& [block, value] : score)
        want[block] = std::max(want[block], std::exp(value - best));
    }
    REQUIRE(calls[layer].size() == want.size());
    for (const ToldHeat::Block& block : calls[layer])
      CHECK(double{block.value} == doctest::Approx(want.at(block.block)).epsilon(1e-5));
  }
}

TEST_CASE("an order that the strategy cannot give is refused, and a storage that fails is named") {
  World world;
  const auto error_of = [&](const std::string& toml) -> std::string {
    try {
      const auto engine = world.bench.engine(world.model, toml, world.options);
      const SequenceId seq = engine->open();
      world.read(*engine, {seq}, 64, From::kModel);
      world.decode(*engine, seq);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  };
  const std::string streaming = "[selector]\nplugin = 'streaming'\n";
  CHECK(error_of(kCache + streaming + storage(KVASIR_HEAT_SCORE)).find("choose another order") !=
        std::string::npos);
  CHECK(error_of(kCache + kTopK + storage(KVASIR_HEAT_MASS) +
                 "[attention]\nplugin = 'kvasir.test.bad_attention'\n")
            .find("provides none") != std::string::npos);
  CHECK(error_of(kCache + kTopK + storage(7)).find("does not know: 7") != std::string::npos);
  CHECK(error_of(kCache + kTopK + storage(KVASIR_HEAT_MASS, "fails = true\n")).find("too hot") !=
        std::string::npos);
}

TEST_SUITE_END();
