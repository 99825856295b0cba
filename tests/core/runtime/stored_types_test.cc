// Keys and values in every element type. What a type can hold exactly is held exactly: over such
// values every strategy gives the outputs of f32 blocks, bit for bit, whatever moves them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "core/model/synthetic/prescribed_model.h"
#include "core/runtime/blocks/element_type.h"
#include "kernels/convert.h"
#include "tests/core/runtime/support.h"
#include "tests/plugins/selector/prescribed_run.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
using kernels::ElementType;

constexpr uint32_t kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 64;
const std::map<std::string, ElementType> kTypes = {{"f16", ElementType::kF16},
                                                   {"bf16", ElementType::kBF16},
                                                   {"q8_0", ElementType::kQ8_0},
                                                   {"q4_0", ElementType::kQ4_0},
                                                   {"fp8_e4m3", ElementType::kFp8E4M3}};

const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n";
const std::string kTopK = "[selector]\nplugin = 'block_topk'\nbudget_tokens = 16\n";
const std::string kStrategies[] = {
    "[selector]\nplugin = 'dense'\n",
    kTopK + "[representative]\nplugin = 'minmax'\n",
    kTopK + "[representative]\nplugin = 'mean'\n",
    kTopK + "[representative]\nplugin = 'max'\n",
    kTopK + "[representative]\nplugin = 'fixed'\n",
    kTopK + "[representative]\nplugin = 'dynamic'\nlast_queries = 20\n",
    "[selector]\nplugin = 'magicpig'\nK = 3\nL = 6\n",
    "[selector]\nplugin = 'infinigen'\nbudget_tokens = 12\n",
    "[selector]\nplugin = 'infllm'\nbudget_tokens = 16\nexc_block_size = 16\n[representative]\n"
    "plugin = 'dynamic'\nmass = 'window'\n",             // keys before RoPE
    "[selector]\nplugin = 'h2o'\nbudget_tokens = 12\n",  // tokens move when the others are dropped
    "[selector]\nplugin = 'oracle'\nbudget_tokens = 16\n",
};

std::string storage(const std::string& plugin, const std::string& type_k,
                    const std::string& type_v) {
  return "[storage]\nplugin = '" + plugin + "'\ntype_k = '" + type_k + "'\ntype_v = '" + type_v +
         "'\n" + (plugin == "kvasir.tiered" ? "cached_blocks = 2\n" : "");
}

// Queries, and K and V as they are after a trip through `k` and `v`.
class Scene {
 public:
  Scene(ElementType k, ElementType v) : k_(k), v_(v) {}

  // Outputs of a prompt in chunks, decoded tokens, a fork, a cut and a second prompt.
  std::vector<float> story(const std::string& toml) {
    outputs_.clear();
    EngineOptions options;
    options.max_context = 512;
    options.max_sequences = 4;
    options.seed = 5;
    const auto engine = bench_.engine(model_, toml, options);
    const auto seq = engine->open();
    Prescribed::prompt(*engine, seq, 101);
    decode(*engine, seq, 20);
    const auto fork = engine->fork(seq);
    decode(*engine, fork, 3);
    try {
      engine->truncate(fork, 90);
    } catch (const Error&) {  // dropped tokens do not come back
    }
    decode(*engine, fork, 10);
    Prescribed::prompt(*engine, fork, 30);
    decode(*engine, seq, 10);
    return outputs_;
  }

 private:
  static void decode(Engine& engine, SequenceId seq, int n) {
    for (int i = 0; i < n; ++i) Prescribed::decode(engine, seq);
  }
  void round_trip(ElementType type, uint32_t layer, int32_t token, uint32_t kind,
                  float* out) const {
    std::vector<std::byte> stored(kernels::row_bytes(type, kDim));
    for (uint32_t head = 0; head < kKvHeads; ++head, out += kDim) {
      for (uint32_t d = 0; d < kDim; ++d) out[d] = given_value(layer, token, head, d, kind);
      kernels::convert_from_f32(type, out, stored.data(), kDim);
      kernels::convert_to_f32(type, stored.data(), out, kDim);
    }
  }

  ElementType k_, v_;
  std::vector<float> outputs_;
  PrescribedModel model_{{kLayers, kQHeads, kKvHeads, kDim, kDim, 512, {}},
                         [this](uint32_t layer, int32_t token, float* q, float* k, float* v) {
                           for (uint32_t i = 0; i < kQHeads * kDim; ++i)
                             q[i] = given_value(layer, token, i / kDim, i % kDim, 0);
                           if (!k) return;
                           round_trip(k_, layer, token, 1, k);
                           round_trip(v_, layer, token, 2, v);
                         },
                         [this](uint32_t, std::span<const int32_t> tokens, const float* o) {
                           outputs_.insert(outputs_.end(), o, o + tokens.size() * kQHeads * kDim);
                         }};
  Bench bench_;
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/stored_types");

TEST_CASE("what a type holds exactly gives the outputs of f32, in memory and in a file") {
  for (const auto& [k, v] : {std::pair<std::string, std::string>{"q8_0", "q8_0"},
                             {"q4_0", "q4_0"},
                             {"q8_0", "f16"},
                             {"bf16", "q4_0"},
                             {"fp8_e4m3", "fp8_e4m3"},
                             {"q8_0", "fp8_e4m3"}})
    for (const std::string& strategy : kStrategies) {
      if (few_cases() && k != "q8_0") continue;
      CAPTURE(k);
      CAPTURE(v);
      CAPTURE(strategy);
      Scene scene(kTypes.at(k), kTypes.at(v));
      const std::string toml = kCache + strategy;
      const auto want = scene.story(toml + storage("kvasir.dram", "f32", "f32"));
      REQUIRE(want.size() > 170 * kLayers * kQHeads * kDim);
      CHECK(scene.story(toml + storage("kvasir.dram", k, v)) == want);
      CHECK(scene.story(toml + storage("kvasir.tiered", k, v)) == want);
    }
}

TEST_CASE("what it cannot hold is rounded: near f32, and not equal to it") {
  for (const auto& [type, bound] :
       {std::pair{"f16", 2e-3}, {"q8_0", 2e-2}, {"fp8_e4m3", 0.2}, {"q4_0", 0.3}}) {
    CAPTURE(type);
    Scene scene(ElementType::kF32, ElementType::kF32);
    const std::string toml = kCache + kStrategies[0];
    const auto want = scene.story(toml + storage("kvasir.dram", "f32", "f32"));
    const auto got = scene.story(toml + storage("kvasir.dram", type, type));
    const double off = max_difference(got, want);
    CHECK(off < bound * largest(want));
    CHECK(off > bound * largest(want) / 30);
  }
}

TEST_CASE("a saved sequence keeps the bytes of its type, and another type is named") {
  for (const std::string& strategy : kStrategies) {
    CAPTURE(strategy);
    Bench bench(8, 2, 32);
    const std::string toml = kCache + strategy + storage("kvasir.dram", "q8_0", "q4_0");
    const auto first = bench.engine(toml), second = bench.engine(toml);
    const auto seq = first->open();
    prefill(*first, seq, some_tokens(70, 4));
    const auto bytes = first->save(seq);
    const auto copy = second->load(bytes, "saved");
    for (TokenId token = 0; token < 20; ++token)
      REQUIRE(kvasir::test::decode(*second, copy, token) ==
              kvasir::test::decode(*first, seq, token));
    CHECK(second->save(copy) == first->save(seq));
    const auto other = bench.engine(kCache + strategy + storage("kvasir.dram", "q8_0", "q8_0"));
    CHECK_THROWS_WITH_AS(other->load(bytes, "saved"),
                         doctest::Contains("storage.type_v = \"q4_0\""), Error);
  }
}

TEST_CASE("bytes held and read are those of the type") {
  Scene scene(ElementType::kF32, ElementType::kF32);
  for (const auto& [type, bytes] : {std::pair<const char*, uint64_t>{"f32", 256},
                                    {"f16", 128},
                                    {"q8_0", 68},
                                    {"fp8_e4m3", 64},
                                    {"q4_0", 36}}) {
    CAPTURE(type);
    const PrescribedModel model(
        {kLayers, kQHeads, kKvHeads, kDim, kDim, 512, {}},
        [](uint32_t, int32_t, float* q, float* k, float* v) {
          std::fill_n(q, kQHeads * kDim, 1.0f);
          if (k) std::fill_n(k, kKvHeads * kDim, 1.0f);
          if (v) std::fill_n(v, kKvHeads * kDim, 1.0f);
        },
        [](uint32_t, std::span<const int32_t>, const float*) {});
    Bench bench;
    const auto engine =
        bench.engine(model, kCache + kStrategies[0] + storage("kvasir.dram", type, type));
    const auto seq = engine->open();
    Prescribed::prompt(*engine, seq, 64);
    // dram rounds K and V of each head of a block, here of 8 tokens, up to 64 bytes.
    CHECK(engine->kv_bytes(seq) == 64 / 8 * kLayers * kKvHeads * 2 * ((8 * bytes + 63) / 64 * 64));
    Prescribed::decode(*engine, seq);
    CHECK(engine->decode_engagement().kv_bytes_read == 65 * kLayers * kKvHeads * 2 * bytes);
  }
}

TEST_CASE("heads that groups do not divide, and readers of other types, are refused by name") {
  Bench bench;  // head_dim 16
  CHECK_THROWS_WITH_AS(
      bench.engine(kCache + kStrategies[0] + storage("kvasir.dram", "f16", "q8_0")),
      doctest::Contains("type_v = \"q8_0\" stores groups of 32 elements, and a head of this model "
                        "has 16: use f16 or bf16"),
      Error);
  const PrescribedModel model(
      {1, 1, 1, 32, 32, 64, {}}, [](uint32_t, int32_t, float*, float*, float*) {},
      [](uint32_t, std::span<const int32_t>, const float*) {});
  CHECK_THROWS_WITH_AS(
      bench.engine(model, kCache + kStrategies[0] + storage("kvasir.dram", "f16", "q8_0") +
                              "[attention]\nplugin = 'kvasir.test.bad_attention'\n"),
      doctest::Contains("reads K and V of f32, f16 or bf16; kvasir.dram holds them as q8_0: set "
                        "storage.type_k and storage.type_v to what it reads"),
      Error);
}

TEST_SUITE_END();
