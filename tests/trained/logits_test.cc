// Trained models against the logits of transformers, behind a short, a middling and a long text.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/model/tokenizer/tokenizer.h"
#include "tests/core/runtime/support.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trained_model.h"
#include "tests/trained/golden.h"

namespace {
using namespace kvasir;

struct Deviation {
  double largest = 0, mean = 0;  // in deviations of the golden logits
};

Deviation deviation_of(std::span<const float> logits, const test::GoldenLogits& golden) {
  Deviation error;
  for (const auto& [id, value] : golden.logits)
    error.largest = test::larger_or_nan(
        error.largest,
        std::abs(double{logits[static_cast<size_t>(id)]} - value) / golden.deviation);
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0);
  error.mean = std::abs(sum / static_cast<double>(logits.size()) - golden.mean) / golden.deviation;
  return error;
}

}  // namespace

TEST_SUITE_BEGIN("trained/logits");

TEST_CASE("logits of trained models are those of transformers, to 1e-4 of their deviation") {
  test::Bench bench;
  const std::string license =
      test::read_bytes((std::filesystem::path(KVASIR_SOURCE_DIR) / "LICENSE").string());
  bool found_any = false;
  for (const test::GoldenLogits& golden : test::kGoldenLogits) {
    const std::filesystem::path path = test::trained_model(golden.file);
    if (!test::has_model(path)) continue;
    found_any = true;
    CAPTURE(std::string(golden.file));
    CAPTURE(golden.n_tokens);
    const GgufFile file = GgufFile::open(path.string());
    std::vector<TokenId> ids = Tokenizer::from_gguf(file)->encode(license + license, {});
    REQUIRE(ids.size() >= golden.n_tokens);
    ids.resize(golden.n_tokens);
    int64_t checksum = 0;
    for (size_t i = 0; i < ids.size(); ++i) checksum += static_cast<int64_t>(i + 1) * ids[i];
    REQUIRE(checksum == golden.checksum);
    const auto model = Model::load(file, test::test_pool(), {Compute::kF32, 512});
    EngineOptions options;
    options.max_context = golden.n_tokens;
    const auto engine = bench.engine(*model, "[selector]\nplugin = 'kvasir.dense'\n", options);
    std::vector<float> logits(engine->vocab_size());
    engine->prefill(engine->open(), ids, logits);
    const Deviation error = deviation_of(logits, golden);
    MESSAGE(std::string(golden.file) << ", " << golden.n_tokens << " tokens: " << error.largest);
    CHECK(error.largest < 1e-4);
    CHECK(error.mean < 1e-4);
  }
  if (!found_any) test::skip_case();
}

TEST_SUITE_END();
