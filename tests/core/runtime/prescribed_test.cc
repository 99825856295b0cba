// The step loop over prescribed queries, keys and values: dense attention is the softmax written
// out, whatever the chunks, and speculation sees the query it was promised.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"

using namespace kvasir;
using namespace kvasir::test;

namespace {

constexpr uint32_t kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 8;

// A value for each (layer, token, head, dimension, kind), the same whenever it is asked for.
float at(uint32_t layer, int32_t token, uint32_t head, uint32_t dim, uint32_t kind) {
  const double x = 1.7 * layer + 0.37 * token + 2.3 * head + 0.71 * dim + 5.1 * kind;
  return static_cast<float>(std::sin(x * x));
}

void project(uint32_t layer, int32_t token, float* q, float* k, float* v) {
  for (uint32_t i = 0; i < kQHeads * kDim; ++i) q[i] = at(layer, token, i / kDim, i % kDim, 0);
  for (uint32_t i = 0; k && i < kKvHeads * kDim; ++i) {
    k[i] = at(layer, token, i / kDim, i % kDim, 1);
    v[i] = at(layer, token, i / kDim, i % kDim, 2);
  }
}

// Output of `layer` for the token at position `pos` when token i stands at position i.
double expected(uint32_t layer, uint32_t pos, uint32_t q_head, uint32_t dim) {
  double sum = 0, out = 0;
  for (uint32_t t = 0; t <= pos; ++t) {
    double dot = 0;
    for (uint32_t d = 0; d < kDim; ++d)
      dot += double{at(layer, static_cast<int32_t>(pos), q_head, d, 0)} *
             double{at(layer, static_cast<int32_t>(t), q_head / 2, d, 1)};
    const double weight = std::exp(dot / std::sqrt(double{kDim}));
    sum += weight;
    out += weight * double{at(layer, static_cast<int32_t>(t), q_head / 2, dim, 2)};
  }
  return out / sum;
}

}  // namespace

TEST_CASE("prescribed keys and values are attended as a softmax written out says") {
  for (const uint32_t chunk : {1u, 7u, 64u}) {
    CAPTURE(chunk);
    double worst = 0;
    uint32_t seen = 0;
    const PrescribedModel model(
        {kLayers, kQHeads, kKvHeads, kDim, kDim, 256, {}}, project,
        [&](uint32_t layer, std::span<const int32_t> tokens, const float* o) {
          for (size_t i = 0; i < tokens.size(); ++i, ++seen)
            for (uint32_t j = 0; j < kQHeads * kDim; ++j)
              worst = larger_or_nan(
                  worst,
                  std::abs(double{o[i * kQHeads * kDim + j]} -
                           expected(layer, static_cast<uint32_t>(tokens[i]), j / kDim, j % kDim)));
        });
    Bench bench;
    EngineOptions options;
    options.max_context = 256;
    const auto engine = bench.engine(model,
                                     "[selector]\nplugin = 'dense'\n[cache]\nchunk_size = " +
                                         std::to_string(chunk) + "\nblock_size = 16\n",
                                     options);
    const SequenceId seq = engine->open();
    std::vector<TokenId> prompt(40);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i);
    std::vector<float> logits(1);
    CHECK(engine->prefill(seq, prompt, logits) == 40);
    for (TokenId token = 40; token < 50; ++token) {
      const Engine::DecodeItem items[] = {{seq, token}};
      engine->decode(items, logits);
    }
    CHECK(seen == kLayers * 50);
    CHECK(worst < 1e-5);
  }
}
