// Models of other rotations and norms: keys turned by a difference are fresh keys, ratio 1 is a
// plain prompt, and what cannot be turned is refused.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "tests/core/blend/support.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

struct Golden {
  explicit Golden(const std::string& name)
      : file(GgufFile::open(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/" + name + ".gguf")),
        model(Model::load(file, test_pool(), {Compute::kF32, 512})) {}
  GgufFile file;
  std::unique_ptr<Model> model;
};

// Chunks of the given lengths, in the model's vocabulary, and a question.
BlendPrompt prompt_of(Blender& blender, const Model& model, std::vector<TokenId>& plain,
                      const std::vector<size_t>& lengths) {
  BlendPrompt prompt;
  const auto fit = [&](std::vector<TokenId> tokens) {
    for (TokenId& id : tokens) id %= static_cast<TokenId>(model.shape().vocab_size);
    plain.insert(plain.end(), tokens.begin(), tokens.end());
    return tokens;
  };
  for (const size_t n : lengths)
    prompt.chunks.push_back(blender.chunks().add(fit(some_tokens(n, static_cast<uint32_t>(n)))));
  prompt.question = fit(some_tokens(5, 3));
  return prompt;
}

// Three chunks over a model, and the same prompt as plain tokens.
struct Blending {
  explicit Blending(const std::string& golden) : tiny(golden) {}
  Golden tiny;
  Bench bench;
  std::unique_ptr<Engine> engine = bench.engine(*tiny.model, kBlendCache, wide());
  Blender blender{*engine, tiny.model->shape(), 0, std::nullopt};
  std::vector<TokenId> plain;
  BlendPrompt prompt = prompt_of(blender, *tiny.model, plain, {17, 30, 9});
};

}  // namespace

TEST_SUITE_BEGIN("core/blend/models");

TEST_CASE("either pairing, every scaling, biases and qk norms: turned keys are fresh ones") {
  for (const std::string golden :
       {"llama-gqa1", "llama-gqa4-llama3", "llama-gqa8-linear", "qwen2-gqa4-yarn", "qwen3-gqa8"}) {
    CAPTURE(golden);
    Blending b(golden);
    const SequenceId full = b.engine->open(), reused = b.blender.place(b.prompt, BlendMode::kReuse);
    std::vector<float> want(b.tiny.model->shape().vocab_size), logits(want.size());
    b.engine->prefill(full, b.plain, want);
    const auto deviation = b.blender.deviations(b.prompt, reused, full);
    for (size_t i = 0; i < deviation[0].size(); ++i) CHECK(deviation[0][i] < 1e-5);
    for (size_t i = 17; i < deviation[0].size(); ++i) CHECK(deviation.back()[i] > 1e-3);
    BlendConfig all;
    all.ratio = 1;
    b.blender.blend(b.prompt, all, 0, logits);
    CHECK(logits == want);
  }
}

TEST_CASE("turning by a difference is turning anew, to 1e-5, however far") {
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit})
    for (const RopeScaling scaling : {RopeScaling::kNone, RopeScaling::kLinear}) {
      RopeConfig config;
      config.pairing = pairing;
      config.scaling = scaling;
      config.factor = scaling == RopeScaling::kLinear ? 4.0f : 1.0f;
      config.n_dims = 16;
      const RopeTable table(config, 1 << 17);
      for (const uint32_t from : {0u, 1u, 511u, 4000u})
        for (const uint32_t to : {0u, 3u, 700u, 100000u}) {
          std::vector<float> x(16);
          for (size_t i = 0; i < x.size(); ++i)
            x[i] = std::sin(static_cast<float>(3 * i + from) + 0.5f);
          const std::vector<float> raw = x;
          const uint32_t pos[] = {from};
          const int32_t turn[] = {static_cast<int32_t>(to) - static_cast<int32_t>(from)};
          table.apply(x.data(), 1, 1, 16, pos, 0);
          table.shift(x.data(), 1, 1, 16, turn, 0);
          for (size_t pair = 0; pair < 8; ++pair) {
            const bool halves = pairing == RopePairing::kHalfSplit;
            const size_t a = halves ? pair : 2 * pair, b = halves ? pair + 8 : 2 * pair + 1;
            const double angle = to * std::pow(1e4, -double(pair) / 8) / double{config.factor};
            CHECK(std::abs(x[a] - (raw[a] * std::cos(angle) - raw[b] * std::sin(angle))) < 1e-5);
            CHECK(std::abs(x[b] - (raw[a] * std::sin(angle) + raw[b] * std::cos(angle))) < 1e-5);
          }
        }
    }
}

TEST_CASE("sliding windows are refused with a sentence, but full prompts are read") {
  for (const std::string golden : {"gemma2-gqa2", "gemma3-gqa4"}) {
    CAPTURE(golden);
    Blending b(golden);
    std::vector<float> logits(b.tiny.model->shape().vocab_size), want(logits.size());
    for (const BlendMode mode : {BlendMode::kPrefix, BlendMode::kReuse, BlendMode::kRatio})
      CHECK(error_of([&] {
              b.blender.blend(b.prompt, config_of(mode), 0, logits);
            }).find("sliding window") != std::string::npos);
    b.blender.blend(b.prompt, config_of(BlendMode::kFull), 0, logits);
    b.engine->prefill(b.engine->open(), b.plain, want);
    CHECK(logits == want);
  }
}

TEST_CASE("rotations that follow the length are refused where it is beyond the trained one") {
  const Golden tiny("llama-gqa2-dynamic");
  const uint32_t trained = tiny.model->shape().rope.original_context;
  REQUIRE(trained > 8);
  REQUIRE(trained < 200);
  Bench bench;
  const auto engine = bench.engine(*tiny.model, kBlendCache, wide());
  Blender blender(*engine, tiny.model->shape(), 0, std::nullopt);
  std::vector<TokenId> plain;
  const BlendPrompt longer = prompt_of(blender, *tiny.model, plain, {trained, 7});
  CHECK(blender.cannot_blend(longer, {}).find("dynamic NTK") != std::string::npos);
  const BlendPrompt shorter = prompt_of(blender, *tiny.model, plain, {trained - 7, 2});
  CHECK(blender.cannot_blend(shorter, {}).empty());
}
