// What published settings come to on the running engine, token by token.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"
#include "tests/plugins/selector/prescribed_run.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

// Tokens that the n-th token of a sequence attends to, its only head's.
std::vector<uint32_t> attended_by(uint32_t n, const std::string& toml) {
  constexpr uint32_t kDim = 4;
  const PrescribedModel model(
      {1, 1, 1, kDim, kDim, n, {}},
      [](uint32_t layer, int32_t token, float* q, float* k, float* v) {
        for (uint32_t d = 0; d < kDim; ++d) {
          q[d] = given_value(layer, token, 0, d, 0);
          if (k) k[d] = given_value(layer, token, 0, d, 1);
          if (v) v[d] = given_value(layer, token, 0, d, 2);
        }
      },
      [](uint32_t, std::span<const int32_t>, const float*) {});
  Bench bench;
  EngineOptions options;
  options.max_context = n;
  std::vector<uint32_t> tokens;
  options.on_attend = [&](uint32_t, uint64_t, uint32_t, std::span<const uint32_t> list) {
    tokens.assign(list.begin(), list.end());
  };
  const auto engine = bench.engine(model, toml, options);
  const auto seq = engine->open();
  Prescribed::prompt(*engine, seq, n - 1);
  tokens.clear();
  Prescribed::decode(*engine, seq);
  return tokens;
}

const std::string kKTransformers =
    "[cache]\nblock_size = 128\nsink_tokens = 128\nwindow_tokens = 4096\nchunk_size = 4096\n"
    "[selector]\nplugin = 'block_topk'\nsecond_block_count = 96\n"
    "[representative]\nplugin = 'mean'\n";

}  // namespace

TEST_SUITE_BEGIN("core/runtime/lengths");

TEST_CASE("KTransformers at 131,073 tokens: 1 + 96 + 32 blocks and the one being filled") {
  if (few_cases()) return;
  const auto tokens = attended_by(131'073, kKTransformers);
  CHECK(tokens.size() == 129 * 128 + 1);
  std::vector<uint32_t> blocks;
  for (const uint32_t token : tokens) blocks.push_back(token / 128);
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  CHECK(blocks.front() == 0);
  const auto chosen = std::count_if(blocks.begin(), blocks.end(),
                                    [](uint32_t block) { return block >= 1 && block <= 991; });
  CHECK(chosen == 96);
  for (uint32_t i = 0; i <= 32; ++i) CHECK(blocks[97 + i] == 992 + i);
}

TEST_CASE("KTransformers at 16,512 tokens: everything") {
  if (few_cases()) return;
  CHECK(attended_by(16'512, kKTransformers) == up_to(16'512));
}

TEST_CASE("StreamingLLM with 4 + 8 of 20 tokens") {
  auto kept = up_to(4);
  for (uint32_t token = 12; token < 20; ++token) kept.push_back(token);
  CHECK(attended_by(20,
                    "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 8\n"
                    "[selector]\nplugin = 'streaming'\n") == kept);
}

TEST_SUITE_END();
