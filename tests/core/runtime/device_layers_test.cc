// Engines over a model whose layers are on a device, here the emulated one: the numbers of the
// host's layers, whatever a strategy asks of the stream on its way, and no row that nobody asks
// for.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "kernels/cuda/runtime.h"
#include "tests/core/runtime/support.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n";
const std::string kTopK =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 8\n[representative]\nplugin = 'minmax'\n";
const std::string kEmulation = KVASIR_TEST_CUDA_PLUGINS;
const std::string kCuda = "[attention]\nplugin = '" + kEmulation + "/cuda_emulation.so'\n";

// K and V where the layers are, or on the host.
std::string blocks(bool on_device, const std::string& type = "f32") {
  return kCuda + "[storage]\nplugin = '" + (on_device ? kEmulation + "/gpu_emulation.so" : "dram") +
         "'\ntype_k = '" + type + "'\ntype_v = '" + type + "'\n";
}

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

// The bench's model with another number at the beginning of a tensor.
GgufFile spoilt(const Bench& bench, const TempDir& dir, const std::string& name, float first) {
  const GgufTensor& tensor = bench.tiny.file->tensor(name);
  std::ifstream from(bench.tiny.file->path(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(from)), {});
  const size_t at =
      bytes.find(std::string_view(reinterpret_cast<const char*>(tensor.data), tensor.n_bytes));
  REQUIRE(at != std::string::npos);
  std::memcpy(bytes.data() + at, &first, sizeof first);
  std::ofstream(dir.path("spoilt"), std::ios::binary) << bytes;
  return GgufFile::open(dir.path("spoilt"));
}

// Decodes token 3: between the model's layers and the host two numbers per layer travel, and what
// begins and ends a step.
void decode_there(Engine& engine, const Model& model, SequenceId seq) {
  const ModelShape& s = model.shape();
  const Model::Placement before = model.placement();
  engine.reset_engagement();
  decode(engine, seq, 3);
  const Model::Placement after = model.placement();
  CHECK(after.copied_to_host - before.copied_to_host ==
        4 * (2 * (s.n_layers + 1) + s.d_model + s.vocab_size));
  CHECK(after.copied_to_device - before.copied_to_device ==
        4 * (2 * s.d_model + 2 * model.rope(0).n_pairs()));
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

TEST_CASE("of a decoded token q, k, v, two counts per layer, its state and its logits come back") {
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
        4 * (s.n_layers * (q + kv + 2) + s.d_model + s.vocab_size));
  CHECK(after.copied_to_device - before.copied_to_device ==
        4 * (s.d_model + s.n_layers * s.n_q_heads * s.v_head_dim + 2 * model->rope(0).n_pairs() +
             s.d_model));
}

TEST_CASE(
    "where the cache is on the device, too, a layer is one graph, and no row of it is copied") {
  Bench bench(4, 2, 8);
  const auto model = on_device(*bench.tiny.file, 99);
  const auto engine =
      bench.engine(*model, kCache + "[selector]\nplugin = 'dense'\n" + blocks(true), options());
  const ModelShape& s = model->shape();
  const SequenceId seq = engine->open();
  prefill(*engine, seq, some_tokens(9, 3));
  decode_there(*engine, *model, seq);
  CHECK(engine->decode_engagement().device_copy_bytes == 0);
  // Two before the first attention, as angles are put behind the norm, one between two of them, one
  // behind the last; one of attention, which takes the same arguments in each layer. And kernel by
  // kernel what the head, storage and the check of attention start.
  const cuda::Launches before_more = cuda::launches();
  decode(*engine, seq, 4);
  const cuda::Launches after_more = cuda::launches();
  CHECK(after_more.graphs - before_more.graphs == 2 * s.n_layers + 2);
  CHECK(after_more.kernels - before_more.kernels == 2 + s.n_layers * (1 + 1));
}

// Selectors that look at queries, at attention's mass, at scores on the host or on the device.
TEST_CASE("the bits are those of rows that are copied, for each way of looking at them") {
  const auto scored = [](bool chooses_there, const std::string& more) {
    return [=](bool on_device) {
      const auto there = [&](const std::string& name) {
        return on_device ? kEmulation + "/cuda_" + name + "_emulation.so" : name;
      };
      const std::string selector = chooses_there ? there("block_topk") : "block_topk";
      return "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n" +
             more + "[selector]\nplugin = '" + selector +
             "'\nbudget_tokens = 8\n[representative]\nplugin = '" + there("minmax") + "'\n" +
             (on_device ? "" : "coarse_first = false\n") + blocks(on_device);
    };
  };
  const auto plain = [](const std::string& selector) {
    return [=](bool on_device) { return kCache + selector + blocks(on_device); };
  };
  const struct {
    std::string name;
    std::function<std::string(bool)> toml;
    bool verifies;
    uint32_t n_layers = 99;
  } strategies[] = {
      {"dense", plain("[selector]\nplugin = 'dense'\n"), true},
      {"h2o, and a layer on the host", plain("[selector]\nplugin = 'h2o'\nbudget_tokens = 12\n"),
       false, 2},
      {"snapkv", plain("[selector]\nplugin = 'snapkv'\nbudget_tokens = 16\n"), false},
      {"infinigen, on the host",
       plain("[selector]\nplugin = 'infinigen'\nbudget_tokens = 8\nskew_tokens = 8\n"), false},
      {"scores there", scored(true, ""), true},
      {"scores here, a layer ahead, too", scored(false, "foresee = 'choose'\n"), false},
      {"scores there, a layer ahead, too", scored(true, "foresee = 'choose'\n"), false},
  };
  Bench bench(4, 2, 8);
  for (const auto& s : strategies) {
    CAPTURE(s.name);
    const auto model = on_device(*bench.tiny.file, s.n_layers);
    const auto copying = bench.engine(*model, s.toml(false), options());
    const Logits want = short_story(*copying, s.verifies);
    const auto engine = bench.engine(*model, s.toml(true), options());
    CHECK(short_story(*engine, s.verifies) == want);
    CHECK(engine->decode_engagement().fallbacks == 0);
    CHECK(bench.log.empty());
  }
}

TEST_CASE("the query of a layer ahead goes to who scores there without a copy") {
  Bench bench(4, 2, 8);
  const auto model = on_device(*bench.tiny.file, 99);
  const ModelShape& s = model->shape();
  const std::string scored = "[selector]\nplugin = '" + kEmulation +
                             "/cuda_block_topk_emulation.so'\nbudget_tokens = 8\n"
                             "[representative]\nplugin = '" +
                             kEmulation + "/cuda_minmax_emulation.so'\n" + blocks(true);
  for (const char* how : {"off", "choose"}) {
    CAPTURE(std::string(how));
    const auto engine = bench.engine(
        *model,
        "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n"
        "gqa_reduce = 'sum'\nforesee = '" +
            std::string(how) + "'\n" + scored,
        options());
    const SequenceId seq = engine->open();
    prefill(*engine, seq, some_tokens(31, 3));
    decode_there(*engine, *model, seq);
    // Lists of two blocks per kv head, which the host reads behind attention; those of a layer
    // ahead the selector hands over itself.
    const uint64_t lists = std::string(how) == "off" ? 4 * 2 * s.n_layers * s.n_kv_heads : 0;
    CHECK(engine->decode_engagement().device_copy_bytes == lists);
    CHECK(engine->decode_engagement().selections == s.n_layers);
    CHECK(engine->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("what is not finite on the device ends its sequence, with what, where, at which token") {
  Bench bench(4, 2, 8);
  const TempDir dir;
  const std::string dense = kCache + "[selector]\nplugin = 'dense'\n";
  const auto fails = [&](const std::string& tensor, float first, const std::string& type) {
    const GgufFile file = spoilt(bench, dir, tensor, first);
    const auto model = on_device(file, 99);
    const auto engine = bench.engine(*model, dense + blocks(true, type), options());
    try {
      prefill(*engine, engine->open(), some_tokens(9, 3));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(fails("blk.1.attn_norm.weight", INFINITY, "f32")
            .find("layer 1: the query at position 0 is not finite") != std::string::npos);
  for (const char* layer : {"1", "2"})
    CHECK(fails(std::string("blk.") + layer + ".ffn_norm.weight", INFINITY, "f32")
              .find(std::string("layer ") + layer + ": the hidden state at position 0") !=
          std::string::npos);
  CHECK(fails("blk.1.attn_v.weight", 1e30f, "f32") == "");
  CHECK(
      fails("blk.1.attn_v.weight", 1e30f, "f16").find("layer 1: output of query 0 is not finite") !=
      std::string::npos);
}

// In the layer where they stop being finite, which the device tells, at the token that the host
// then finds; the sequence beside it goes on.
TEST_CASE("hidden states that are not finite end their sequence in their layer") {
  Bench bench(4, 2, 8);
  const TempDir dir;
  const GgufFile file = spoilt(bench, dir, "blk.1.ffn_norm.weight", INFINITY);
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
