// From logits to the next token: greedy, temperature, top-k, top-p, min-p, repetition penalty.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir {

struct SamplerOptions {         // names and defaults as llama.cpp's users know them
  float temperature = 0.8f;     // 0 = greedy
  uint32_t top_k = 40;          // 0 = off
  float top_p = 0.95f;          // 1 = off
  float min_p = 0.05f;          // 0 = off
  float repeat_penalty = 1.0f;  // 1 = off
  uint32_t repeat_last_n = 64;
  uint64_t seed = 0;  // same seed, same answer
};

class Sampler {
 public:
  // Error(kInput) for an option that is not a number, or a penalty that is not positive.
  explicit Sampler(const SamplerOptions& options);
  // Order: repetition penalty, top-k, top-p, min-p, temperature, draw. Greedy ties: lowest id.
  TokenId sample(std::span<const float> logits);
  void accept(TokenId token);  // remembered for the repetition penalty (prompt tokens too)

 private:
  SamplerOptions options_;
  std::mt19937_64 rng_;
  std::vector<TokenId> recent_;  // the last repeat_last_n tokens, a ring
  size_t oldest_ = 0;
};

}  // namespace kvasir
