// Queries, keys and values by a formula, which a model projects or which are given.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/core/runtime/support.h"

namespace kvasir::test {

// What attention puts out in decoding, layer by layer and step by step.
using Outputs = std::vector<std::vector<float>>;

class GivenWorld {
 public:
  static constexpr uint32_t kLayers = 3, kQHeads = 8, kKvHeads = 2;  // of a TinyModel
  static constexpr uint32_t kPrompt = 231, kSteps = 9;
  // Who says what the prompt's tokens look like.
  enum class From { kModel, kGiven, kGivenToAllAskers };

  // rotates: queries and keys, to their positions.
  explicit GivenWorld(uint32_t head_dim = 16, bool rotates = true)
      : dim(head_dim),
        model(
            {kLayers, kQHeads, kKvHeads, head_dim, head_dim, 512, rope_of(rotates ? head_dim : 0)},
            [this](uint32_t layer, int32_t token, float* q, float* k, float* v) {
              project(layer, token, q, k, v);
            },
            [this](uint32_t, std::span<const int32_t> tokens, const float* o) {
              if (records_) decoded_.emplace_back(o, o + tokens.size() * kQHeads * dim);
            }) {
    options.max_context = 512;
    options.max_sequences = 3;
  }

  void project(uint32_t layer, int32_t token, float* q, float* k, float* v) const {
    const auto write = [&](uint32_t n_heads, uint32_t kind, float* to) {
      for (uint32_t i = 0; to && i < n_heads * dim; ++i) {
        const double x =
            1.7 * layer + 0.37 * token + 2.3 * (i / dim) + 0.71 * (i % dim) + 5.1 * kind;
        to[i] = static_cast<float>(std::sin(x * x));
      }
    };
    write(kQHeads, 0, q);
    write(kKvHeads, 1, k);
    write(kKvHeads, 2, v);
  }
  GivenProjections give() const {
    return [this](uint32_t layer, uint32_t first_pos, uint32_t n, float* q, float* k, float* v) {
      for (uint32_t i = 0; i < n; ++i)
        project(layer, static_cast<int32_t>(first_pos + i), q + i * kQHeads * dim,
                k + i * kKvHeads * dim, v + i * kKvHeads * dim);
    };
  }

  // The prompt in pieces of `chunk`, of the first sequence and of those that follow it.
  void read(Engine& engine, const std::vector<SequenceId>& seqs, uint32_t chunk, From from) const {
    for (const SequenceId seq : seqs) engine.begin_prompt(seq, kPrompt);
    for (uint32_t pos = 0; pos < kPrompt; pos += chunk) {
      std::vector<TokenId> tokens(std::min(chunk, kPrompt - pos));
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(pos + i);
      StepItem item{.seq = seqs[0], .tokens = tokens, .followers = std::span(seqs).subspan(1)};
      if (from != From::kModel) item.given = give();
      if (from == From::kGivenToAllAskers) item.given_to = GivenTo::kAllAskers;
      const std::vector<ItemResult> results = engine.step({&item, 1});
      REQUIRE(results[0].text() == "");
      for (const std::exception_ptr& error : results[0].follower_errors) REQUIRE(error == nullptr);
    }
  }
  Outputs decode(Engine& engine, SequenceId seq) {
    decoded_.clear();
    records_ = true;
    std::vector<float> logits(1);
    for (uint32_t step = 0; step < kSteps; ++step) {
      const Engine::DecodeItem item{seq, static_cast<TokenId>(kPrompt + step)};
      engine.decode({&item, 1}, logits);
    }
    records_ = false;
    return decoded_;
  }

  const uint32_t dim;
  PrescribedModel model;
  Bench bench;
  EngineOptions options;

 private:
  static RopeConfig rope_of(uint32_t n_dims) {
    RopeConfig rope;
    rope.n_dims = n_dims;
    return rope;
  }
  Outputs decoded_;
  bool records_ = false;
};

}  // namespace kvasir::test
