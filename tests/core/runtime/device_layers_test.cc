// Engines over a model whose layers are on a device, here the emulated one: the numbers of the
// host's layers, whatever a strategy asks of the stream on its way, and no row that nobody asks
// for.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/core/runtime/support.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n";
const std::string kTopK =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 8\n[representative]\nplugin = 'minmax'\n";

std::unique_ptr<Model> on_device(const GgufFile& file, uint32_t n_layers) {
  Model::Options options;
  options.max_batch_tokens = 64;
  options.device_layers = n_layers;
  options.device_library = KVASIR_TEST_DEVICE_LIBRARY;
  return Model::load(file, test_pool(), options);
}

EngineOptions options() {
  EngineOptions made;
  made.max_sequences = 4;
  made.max_step_tokens = 40;
  return made;
}

// A prompt in two pieces, tokens of two sequences together, a piece beside a decoded token, drafts.
Logits short_story(Engine& engine, bool verifies) {
  Logits out;
  const auto a = engine.open(), b = engine.open();
  out.push_back(prefill(engine, a, some_tokens(29, 1)));
  out.push_back(prefill(engine, b, some_tokens(5, 2)));
  for (TokenId token = 0; token < 3; ++token) {
    out.emplace_back(600);
    engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token}}, out.back());
  }
  const auto tokens = some_tokens(7, 9);
  const TokenId one[] = {4};
  const auto c = engine.open();
  out.emplace_back(300);
  const StepItem mixed[] = {{.seq = a, .tokens = one, .logits = out.back()},
                            {.seq = c, .tokens = tokens}};
  engine.begin_prompt(c, 7);
  for (const ItemResult& result : engine.step(mixed)) CHECK(result.text() == "");
  out.push_back(decode(engine, c, 5));
  if (!verifies) return out;
  const std::vector<TokenId> drafts = {7, 8, 9};
  const std::vector<int32_t> parents = {-1, 0, 0};
  out.emplace_back(900);
  const StepItem verified = {.seq = a, .tokens = drafts, .logits = out.back(), .parents = parents};
  CHECK(engine.step({&verified, 1})[0].text() == "");
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/device_layers");

// Those that look at a layer's input or state, at queries before RoPE, or store keys before it.
TEST_CASE("logits are those of the host, for each way of looking at the stream") {
  const struct {
    const char* name;
    std::string toml;
    bool verifies;
  } strategies[] = {
      {"dense", kCache + "[selector]\nplugin = 'dense'\n", true},
      {"a layer ahead",
       "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n"
       "foresee = 'choose'\n" +
           kTopK,
       false},
      {"its input", kCache + "[selector]\nplugin = 'kvasir.test.lists'\nunit = 'block'\n", false},
      {"infinigen", kCache + "[selector]\nplugin = 'infinigen'\n", false},
      {"infllm",
       "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n"
       "bypass = false\n[selector]\nplugin = 'infllm'\ntopk = 2\nexc_block_size = 4\n"
       "[representative]\nplugin = 'mean'\n",
       false},
  };
  Bench bench(4, 2, 8);
  for (const auto& s : strategies) {
    CAPTURE(std::string(s.name));
    const auto host = bench.engine(s.toml, options());
    const Logits want = short_story(*host, s.verifies);
    for (const uint32_t n : {1u, 99u}) {
      CAPTURE(n);
      const auto model = on_device(*bench.tiny.file, n);
      const auto engine = bench.engine(*model, s.toml, options());
      CHECK(max_difference(short_story(*engine, s.verifies), want) < 1e-4);
    }
  }
}

TEST_CASE("tokens that are computed again, fewer from layer to layer") {
  Bench bench(4, 2, 8);
  const auto model = on_device(*bench.tiny.file, 99);
  const auto logits_of = [&](const Model& of) {
    const auto engine = bench.engine(of, kCache + "[selector]\nplugin = 'dense'\n", options());
    const SequenceId seq = engine->open();
    prefill(*engine, seq, some_tokens(16, 3));
    const NarrowRecompute narrow = [&](const RecomputedLayer& layer) {
      std::vector<uint32_t> left;
      for (const uint32_t pos : layer.positions)
        if (layer.layer == 0 || pos % 2 == 1) left.push_back(pos);
      return left;
    };
    std::vector<uint32_t> all(16);
    for (uint32_t i = 0; i < 16; ++i) all[i] = i;
    std::vector<float> logits(300);
    const StepItem item{.seq = seq, .logits = logits, .recompute = all, .narrow = narrow};
    CHECK(engine->step({&item, 1})[0].text() == "");
    return logits;
  };
  CHECK(max_difference(logits_of(*model), logits_of(*bench.tiny.model)) < 1e-4);
}

TEST_CASE("of a decoded token only q, k, v, a flag per layer, its state and its logits come back") {
  Bench bench(4, 2, 8);
  const auto model = on_device(*bench.tiny.file, 99);
  const auto engine = bench.engine(*model, kCache + "[selector]\nplugin = 'dense'\n", options());
  const ModelShape& s = model->shape();
  const SequenceId seq = engine->open();
  prefill(*engine, seq, some_tokens(9, 3));
  const Model::Placement before = model->placement();
  decode(*engine, seq, 3);
  const Model::Placement after = model->placement();
  const uint64_t q = s.n_q_heads * s.head_dim, kv = s.n_kv_heads * (s.head_dim + s.v_head_dim);
  CHECK(after.copied_to_host - before.copied_to_host ==
        4 * (s.n_layers * (q + kv + 1) + s.d_model + s.vocab_size));
  CHECK(after.copied_to_device - before.copied_to_device ==
        4 * (s.d_model + s.n_layers * s.n_q_heads * s.v_head_dim + 2 * model->rope(0).n_pairs() +
             s.d_model));
}

// In the layer where they stop being finite, which the device tells, at the token that the host
// then finds; the sequence beside it goes on.
TEST_CASE("hidden states that are not finite end their sequence in their layer") {
  Bench bench(4, 2, 8);
  const TempDir dir;
  const std::string path = dir.path("nan");
  {
    const GgufTensor& tensor = bench.tiny.file->tensor("blk.1.ffn_norm.weight");
    std::ifstream from(bench.tiny.file->path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(from)), {});
    const size_t at =
        bytes.find(std::string_view(reinterpret_cast<const char*>(tensor.data), tensor.n_bytes));
    REQUIRE(at != std::string::npos);
    const float infinity = INFINITY;
    std::memcpy(bytes.data() + at, &infinity, sizeof infinity);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  const GgufFile file = GgufFile::open(path);
  for (const uint32_t n : {0u, 1u, 2u, 99u}) {  // the host's layer, and a device's
    CAPTURE(n);
    Model::Options plain;
    plain.max_batch_tokens = 64;
    const auto model = n ? on_device(file, n) : Model::load(file, test_pool(), plain);
    const auto engine = bench.engine(*model, kCache + "[selector]\nplugin = 'dense'\n", options());
    const SequenceId seq = engine->open();
    CHECK_THROWS_WITH_AS(prefill(*engine, seq, some_tokens(9, 3)),
                         doctest::Contains("layer 1: the hidden state at position 0 is not finite"),
                         Error);
  }
}
