// [cache] foresee: what a layer will choose by its best scores, told by the state behind the
// attention of the layer before.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tests/core/runtime/support.h"
#include "tests/plugins/selector/prescribed_run.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kPrompt = 300, kSteps = 40;
const std::string kPlugins =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 32\n"
    "[representative]\nplugin = 'kvasir.mean'\n";
const std::string kF32 = "[storage]\ntype_k = 'f32'\ntype_v = 'f32'\n";
std::string cache(const std::string& more) {
  return "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 8\n" + more + "\n";
}
std::string foreseen(const char* how) { return cache("foresee = '" + std::string(how) + "'"); }

struct Told {
  std::vector<float> outputs;
  std::vector<std::vector<uint32_t>> attended;  // by step, layer and kv head
  Engagement decode;
};

// A prompt and an answer. With `records`, what each layer attended to.
Told run(Prescribed& scene, const std::string& toml, bool records = true) {
  const auto engine = scene.engine(toml + (records ? kRecording : ""));
  const auto seq = engine->open();
  Prescribed::prompt(*engine, seq, kPrompt);
  Told told;
  for (uint32_t i = 0; i < kSteps; ++i) {
    if (records) recording_of(*engine).armed = 1;
    Prescribed::decode(*engine, seq);
    if (!records) continue;
    Recording& book = recording_of(*engine);
    for (const RecordedRun& layer : book.runs)
      for (uint32_t kv = 0; kv < 2; ++kv) told.attended.push_back(attended(layer, seq, kv));
    book.runs.clear();
    book.armed = 0;
  }
  told.outputs = scene.outputs;
  told.decode = engine->decode_engagement();
  CHECK(told.decode.fallbacks == 0);
  return told;
}
}  // namespace

TEST_SUITE_BEGIN("core/runtime/foresee");

// Layers that choose nothing are known without a query. What a layer of the next step needs is
// there when that begins, if the thread that brings it has had time.
TEST_CASE("all blocks of a dense layer travel while the layer before computes") {
  const std::string dense_first = cache("dense_layers = [0]") + kPlugins,
                    dense = cache("") + "[selector]\nplugin = 'kvasir.dense'\n";
  for (const std::string& strategy : {dense_first, dense}) {
    CAPTURE(strategy);
    const auto told = [&](const std::string& storage) {
      Prescribed scene;
      return run(scene, strategy + kF32 + storage, false);
    };
    const std::string tiered = "plugin = 'kvasir.tiered'\ncached_blocks = 0\n",
                      waits = tiered + "read_ahead = false\n";
    const Told plain = told("plugin = 'kvasir.dram'\n");
    Told late = told(waits), ahead = told(tiered);
    for (int i = 0; i < 20 && ahead.decode.blocks_missed >= late.decode.blocks_missed; ++i) {
      late = told(waits);
      ahead = told(tiered);
    }
    CHECK(ahead.decode.blocks_missed < late.decode.blocks_missed);
    for (const Told* one : std::initializer_list<const Told*>{&late, &ahead}) {
      CHECK(one->outputs == plain.outputs);
      CHECK(one->decode.blocks_hit + one->decode.blocks_missed ==
            late.decode.blocks_hit + late.decode.blocks_missed);
    }
  }
}

// Queries that change with every attention, as those of a model do: asked before that of the layer
// before, they are others.
TEST_CASE("what is foreseen follows from the state behind the attention of the layer before") {
  const auto told = [](const char* how) {
    Prescribed scene;
    scene.q = [&scene](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
      constexpr size_t kPerToken = Prescribed::kQHeads * Prescribed::kDim;
      return given_value(l, t, h, d, 3 + scene.outputs.size() / kPerToken % 2);
    };
    return run(scene, foreseen(how) + kPlugins + kF32);
  };
  const Told off = told("off"), choose = told("choose");
  CHECK(choose.outputs == off.outputs);
  CHECK(choose.attended == off.attended);
  CHECK(choose.decode.selections == off.decode.selections);
  CHECK(choose.decode.tokens_selected == off.decode.tokens_selected);
  CHECK(choose.decode.representative_bytes_read == off.decode.representative_bytes_read);
}

TEST_CASE("\"choose\" attends to what was foreseen, whatever the layer's own query says") {
  const auto told = [](const char* how, bool changes) {
    Prescribed scene;
    std::map<std::pair<uint32_t, int32_t>, uint32_t> calls;
    scene.q = [&, changes](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
      uint32_t& n = calls[{l, t}];
      n += h == 0 && d == 0;
      return given_value(l, t, h, d, changes && l > 0 && t >= int32_t{kPrompt} && n > 1 ? 3 : 0);
    };
    return run(scene, foreseen(how) + kPlugins + kF32);
  };
  const Told off = told("off", false), choose = told("choose", true), read = told("read", true);
  CHECK(choose.attended == off.attended);
  CHECK(choose.outputs != off.outputs);
  CHECK(read.attended == off.attended);  // nothing moves in dram: queries are projected once
}

// What is given does not depend on what came before: the query of a layer ahead is right, and so is
// what is foreseen. Of the blocks nothing stays in memory, but what is not written yet.
TEST_CASE("blocks with the best scores of a layer ahead travel while this layer computes") {
  const auto told = [](const char* how, const std::string& storage) {
    Prescribed scene;
    return run(scene, foreseen(how) + kPlugins + kF32 + storage, false);
  };
  const std::string tiered = "plugin = 'kvasir.tiered'\ncached_blocks = 0\n",
                    waits = tiered + "read_ahead = false\n";
  const Told plain = told("off", "plugin = 'kvasir.dram'\n");
  const uint64_t bytes = plain.decode.representative_bytes_read;
  for (const std::string how : {"read", "choose"}) {
    CAPTURE(how);
    const Told asked = told(how.c_str(), waits);
    Told ahead = told(how.c_str(), tiered);
    for (const Told* one : std::initializer_list<const Told*>{&asked, &ahead}) {
      CHECK(one->outputs == plain.outputs);
      CHECK(one->decode.tokens_selected == plain.decode.tokens_selected);
      CHECK(one->decode.selections == plain.decode.selections);
    }
    // To read ahead, scores of two of three layers are computed twice, but for a layer that lacked
    // nothing, since its blocks were not written yet; for a storage that takes nothing ahead once.
    if (how == "read") {
      CHECK(ahead.decode.representative_bytes_read <= bytes + bytes * 2 / 3);
      CHECK(asked.decode.representative_bytes_read <= bytes + bytes / kSteps);
    } else {
      CHECK(ahead.decode.representative_bytes_read == bytes);
      CHECK(asked.decode.representative_bytes_read == bytes);
    }
    // Some come in time, if the thread that brings them gets a core and what is asked for had left.
    Told late = asked;
    const auto overlaps = [&] {
      return ahead.decode.blocks_missed < late.decode.blocks_missed &&
             (how == "choose" || ahead.decode.representative_bytes_read > bytes);
    };
    for (int i = 0; i < 100 && !overlaps(); ++i) {
      late = told(how.c_str(), waits);
      ahead = told(how.c_str(), tiered);
    }
    CHECK(overlaps());
  }
}

TEST_CASE("a choice made ahead is that of its sequence, in company and alone, and is kept") {
  for (const std::string more : {"", "token_step = 3\n"}) {
    CAPTURE(more);
    Bench bench(8, 2);
    const auto engine = bench.engine(cache("foresee = 'choose'\n" + more) + kPlugins + kF32);
    std::vector<SequenceId> together, alone;
    for (uint32_t i = 0; i < 3; ++i) {
      together.push_back(engine->open());
      prefill(*engine, together[i], some_tokens(100 + 13 * i, i));
      alone.push_back(engine->fork(together[i]));
    }
    std::vector<float> logits(3 * engine->vocab_size());
    for (TokenId token = 0; token < 12; ++token) {
      std::vector<Engine::DecodeItem> items;
      for (const SequenceId seq : together) items.push_back({seq, token});
      engine->decode(items, logits);
      for (uint32_t i = 0; i < 3; ++i) {
        const auto row = std::span(logits).subspan(i * engine->vocab_size(), engine->vocab_size());
        CHECK(decode(*engine, alone[i], token) == std::vector<float>(row.begin(), row.end()));
      }
    }
    const Engagement& told = engine->decode_engagement();
    CHECK(told.fallbacks == 0);
    // 12 steps of 6 sequences in 3 layers.
    if (more.empty()) {
      CHECK(told.selections == 12 * 6 * 3);
    } else {
      CHECK(told.selections == 4 * 6 * 3);
      CHECK(told.reused == 8 * 6 * 3);
    }
  }
}

TEST_CASE("dense attention has nothing foreseen, and no query is made for it") {
  Prescribed scene;
  uint32_t n_queries = 0;
  scene.q = [&](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
    n_queries += h == 0 && d == 0;
    return given_value(l, t, h, d, 0);
  };
  run(scene, foreseen("choose") + "[selector]\nplugin = 'kvasir.dense'\n" + kF32, false);
  CHECK(n_queries == (kPrompt + kSteps) * Prescribed::kLayers);
}

TEST_CASE("who cannot be foreseen is refused, and says where that was asked for") {
  const auto refused = [](const char* how, const std::string& plugins) {
    Bench bench(8, 2);
    return error_of([&] { bench.engine(foreseen(how) + plugins); });
  };
  const std::string infinigen = "[selector]\nplugin = 'kvasir.infinigen'\n",
                    snapkv = "[selector]\nplugin = 'kvasir.snapkv'\n";
  for (const char* how : {"read", "choose"})
    for (const std::string& plugins : {infinigen, snapkv}) {
      const std::string text = refused(how, plugins);
      CHECK_MESSAGE(text.find("foresee needs one selector") != std::string::npos, text);
      CHECK(text.find(":5:") != std::string::npos);
    }
  Bench bench(8, 2);
  const auto largest = [](const char* how) {
    return cache("gqa_reduce = 'max'\nforesee = '" + std::string(how) + "'") + kPlugins;
  };
  CHECK(error_of([&] { bench.engine(largest("read")); }).find("summed over its query heads") !=
        std::string::npos);
  CHECK_NOTHROW(bench.engine(largest("choose")));
  CHECK_NOTHROW(bench.engine(foreseen("choose") + "[selector]\nplugin = 'kvasir.dense'\n"));
}

TEST_SUITE_END();
