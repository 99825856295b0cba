// Engines over prescribed queries, keys and values, so that a test knows what a selector sees.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"
#include "tests/support/larger_or_nan.h"

namespace kvasir::test {

// About standard normal, the same whenever it is asked for.
inline float given_value(uint32_t layer, int32_t token, uint32_t head, uint32_t d, uint32_t kind) {
  uint64_t x = uint64_t{layer} << 48 ^ static_cast<uint64_t>(token) << 24 ^
               uint64_t { head } << 16 ^ uint64_t { d } << 4 ^ kind;
  float sum = -2.0f;
  for (int i = 0; i < 4; ++i) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
    sum += static_cast<float>(x >> 40) * 0x1p-24f;
  }
  return sum * 1.7320508f;
}

// Token i stands at position i. No RoPE: what is given is what attention multiplies.
struct Prescribed {
  static constexpr uint32_t kLayers = 3, kQHeads = 4, kKvHeads = 2, kDim = 16;
  using Value = std::function<float(uint32_t layer, int32_t token, uint32_t head, uint32_t d)>;

  Value q = [](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
    return given_value(l, t, h, d, 0);
  };
  Value k = [](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
    return given_value(l, t, h, d, 1);
  };
  std::vector<float> outputs{};  // of every layer and token, in order
  PrescribedModel model{
      {kLayers, kQHeads, kKvHeads, kDim, kDim, 4096, {}},
      [this](uint32_t layer, int32_t token, float* to_q, float* to_k, float* to_v) {
        for (uint32_t i = 0; i < kQHeads * kDim; ++i) to_q[i] = q(layer, token, i / kDim, i % kDim);
        for (uint32_t i = 0; to_k && i < kKvHeads * kDim; ++i) {
          to_k[i] = k(layer, token, i / kDim, i % kDim);
          to_v[i] = given_value(layer, token, i / kDim, i % kDim, 2);
        }
      },
      [this](uint32_t, std::span<const int32_t> tokens, const float* o) {
        outputs.insert(outputs.end(), o, o + tokens.size() * kQHeads * kDim);
      }};
  Bench bench{};

  std::unique_ptr<Engine> engine(const std::string& toml, uint64_t model_hash = 0) {
    EngineOptions options;
    options.max_context = 4096;
    options.max_sequences = 4;
    options.model_hash = [model_hash] { return model_hash; };
    options.seed = 5;
    return bench.engine(model, toml, options);
  }
  // Appends tokens [kv_len, kv_len + n) as a prompt.
  static void prompt(Engine& engine, SequenceId seq, uint32_t n) {
    std::vector<TokenId> tokens(n);
    std::iota(tokens.begin(), tokens.end(), static_cast<TokenId>(engine.kv_len(seq)));
    std::vector<float> logits(1);
    engine.prefill(seq, tokens, logits);
  }
  static void decode(Engine& engine, std::span<const SequenceId> seqs) {
    std::vector<Engine::DecodeItem> items;
    for (const SequenceId seq : seqs)
      items.push_back({seq, static_cast<TokenId>(engine.kv_len(seq))});
    std::vector<float> logits(items.size());
    engine.decode(items, logits);
  }
  static void decode(Engine& engine, SequenceId seq) { decode(engine, std::span(&seq, 1)); }

  double logit(uint32_t layer, uint32_t query, uint32_t q_head, uint32_t key) const {
    double dot = 0;
    for (uint32_t d = 0; d < kDim; ++d)
      dot += double{q(layer, static_cast<int32_t>(query), q_head, d)} *
             double{k(layer, static_cast<int32_t>(key), q_head / 2, d)};
    return dot / 4;
  }
  // What a query head gets from attending to these tokens, from the definition.   [kDim]
  std::vector<double> attention(uint32_t layer, uint32_t query, uint32_t q_head,
                                std::span<const uint32_t> tokens) const {
    std::vector<double> out(kDim), logits;
    double most = -1e300, sum = 0;
    for (const uint32_t t : tokens) {
      logits.push_back(logit(layer, query, q_head, t));
      most = std::max(most, logits.back());
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double p = std::exp(logits[i] - most);
      sum += p;
      for (uint32_t d = 0; d < kDim; ++d)
        out[d] += p * given_value(layer, static_cast<int32_t>(tokens[i]), q_head / 2, d, 2);
    }
    for (double& value : out) value /= sum;
    return out;
  }
  // The largest difference of `outputs` to that. The prompt of `n` tokens came in chunks, then
  // n_decoded one by one; attended(layer, kv_head, query) lists the tokens.
  template <class Attended>
  double worst_output(uint32_t n, uint32_t chunk, uint32_t n_decoded,
                      const Attended& attended) const {
    double worst = 0;
    size_t at = 0;
    for (uint32_t begin = 0, end; begin < n + n_decoded; begin = end) {
      end = begin < n ? std::min(n, begin + chunk) : begin + 1;
      for (uint32_t layer = 0; layer < kLayers; ++layer)
        for (uint32_t query = begin; query < end; ++query)
          for (uint32_t q_head = 0; q_head < kQHeads; ++q_head) {
            const auto want = attention(layer, query, q_head, attended(layer, q_head / 2, query));
            for (uint32_t d = 0; d < kDim; ++d, ++at)
              worst = test::larger_or_nan(worst, std::abs(want[d] - outputs.at(at)));
          }
    }
    return at == outputs.size() ? worst : 1e300;
  }
};

}  // namespace kvasir::test
