// A token's logits do not depend on what shares its step: bit for bit the same for every chunk size
// of its prompt and every batch it is decoded in, for each type of K and V, in f32 and in bf16 that
// was asked to be deterministic.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/model/layers/model.h"
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kPrompt = 90, kSteps = 6, kVocab = 300;
constexpr uint32_t kChunks[] = {1, 2, 3, 7, 16, 31, 128};  // the last holds the prompt

std::string strategy(const std::string& selector, const std::string& type, uint32_t chunk) {
  return "[cache]\nblock_size = 16\nwindow_tokens = 16\nsink_tokens = 4\nchunk_size = " +
         std::to_string(chunk) + "\n" + selector + "[storage]\nplugin = 'kvasir.dram'\ntype_k = '" +
         type + "'\ntype_v = '" + type + "'\n";
}

struct Scene {
  Bench bench{8, 2, 32};
  const Model* model = bench.tiny.model;

  // Logits of every token of the prompt, then of kSteps decoded ones.
  std::vector<float> alone(const std::string& toml, uint32_t n_prompt, uint32_t path) {
    const auto engine = bench.engine(*model, toml);
    const auto seq = engine->open();
    std::vector<float> out;
    Engine::PrefillHooks hooks;
    hooks.all_logits = [&](uint32_t, uint32_t n, const float* logits) {
      out.insert(out.end(), logits, logits + size_t{n} * kVocab);
    };
    std::vector<float> last(kVocab);
    REQUIRE(engine->prefill(seq, some_tokens(n_prompt, path), last, hooks) == n_prompt);
    for (uint32_t i = 0; i < kSteps; ++i) {
      const auto logits = decode(*engine, seq, token_at(i, path));
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  }
};

const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 32\n"
    "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n";

void check_company(Scene& scene) {
  for (const std::string& selector : {kDense, kTopK})
    for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0", "fp8_e4m3"}) {
      if (few_cases() && selector != kTopK && *type == 'b') continue;
      if (emulated() && *type != 'f') continue;
      CAPTURE(type);
      std::vector<float> want;
      for (const uint32_t chunk : kChunks) {
        if (few_cases() && chunk != 1 && chunk != 7 && chunk != 128) continue;
        if (emulated() && chunk == 1) continue;
        CAPTURE(chunk);
        const auto got = scene.alone(strategy(selector, type, chunk), kPrompt, 0);
        if (want.empty()) want = got;
        CHECK(got == want);
      }
      // Batches of 1 to 12 sequences: both products of the dense layers, tiles of every width.
      for (const uint32_t n : {2u, 5u, 9u, 12u}) {
        if (few_cases() && n != 12) continue;
        CAPTURE(n);
        EngineOptions options;
        options.max_sequences = n;
        const auto toml = strategy(selector, type, 128);
        const auto engine = scene.bench.engine(*scene.model, toml, options);
        const uint32_t own = n / 2;  // the others are other prompts, shorter and longer
        std::vector<SequenceId> ids;
        for (uint32_t s = 0; s < n; ++s) {
          ids.push_back(engine->open());
          prefill(*engine, ids[s],
                  s == own ? some_tokens(kPrompt, 0) : some_tokens(3 + s * 23, s + 1));
        }
        for (uint32_t i = 0; i < kSteps; ++i) {
          std::vector<Engine::DecodeItem> items;
          for (uint32_t s = 0; s < n; ++s)
            items.push_back({ids[s], token_at(i, s == own ? 0 : s + 1)});
          std::vector<float> logits(size_t{n} * kVocab);
          engine->decode(items, logits);
          CHECK(std::equal(logits.begin() + own * kVocab, logits.begin() + (own + 1) * kVocab,
                           want.begin() + (kPrompt + i) * kVocab));
        }
      }
    }
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/company");

TEST_CASE("f32: the same bits for every chunk size and in every batch") {
  Scene scene;
  check_company(scene);
}

TEST_CASE("bf16 made deterministic: the same bits for every chunk size and in every batch") {
  if (!compute_supported(Compute::kBF16)) return;
  Scene scene;
  const auto model = Model::load(*scene.bench.tiny.file, test_pool(), {Compute::kBF16, 512, true});
  const Model* f32 = std::exchange(scene.model, model.get());
  check_company(scene);
  const auto toml = strategy(kDense, "f32", 128);
  const auto rounded = scene.alone(toml, kPrompt, 0);
  scene.model = f32;
  CHECK(rounded != scene.alone(toml, kPrompt, 0));  // it was not f32
}
