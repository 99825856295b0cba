// Models with the shape of real ones and random weights: for tests, benchmarks and dry runs of a
// machine where the real weights are not at hand. Same spec, same seed: same bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/gguf/weight_mix.h"
#include "core/model/layers/model.h"

namespace kvasir {

struct RandomModelSpec {
  std::string name = "random";
  std::string architecture = "llama";  // a name of core/model/layers/architecture.h
  uint32_t n_layers = 0, d_model = 0, d_ff = 0;
  uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0;
  uint32_t vocab_size = 0;      // 0 = as many tokens as the tokenizer has
  uint32_t context_length = 0;  // tokens, as claimed in the file
  bool rope = true;             // false: rope.dimension_count 0, queries and keys are not rotated
  float rope_base = 10000.0f;
  float norm_eps = 1e-5f;
  bool qkv_bias = false, qk_norm = false;  // true where the architecture always has them
  bool tied_embeddings = false;
  // Tokens that most layers see, as the architecture says which; below the context length, or 0.
  uint32_t sliding_window = 0;
  float softmax_softcap = 0.0f, logits_softcap = 0.0f;  // 0: none
  WeightMix type = GgmlType::kBF16;                     // of the matrices; the rest is F32
  uint64_t seed = 1;
  // Norm weights are 1 + norm_spread * u, u uniform in [-1, 1): above 0 a forgotten norm shows.
  float norm_spread = 0.0f;

  // Written as <architecture>.rope.scaling.*; "llama3" becomes the tensor rope_freqs.weight, as
  // Llama 3.1 and later are stored.
  std::string rope_scaling;  // empty = none, linear, yarn, dynamic, llama3
  float rope_factor = 1.0f;
  uint32_t rope_original_context = 0;                               // tokens; yarn, llama3
  float rope_low_freq_factor = 1.0f, rope_high_freq_factor = 4.0f;  // llama3
};

// Shapes as published with the models of that name; Error listing the names when there is none.
RandomModelSpec preset(const std::string& name);
std::vector<std::string> preset_names();

// The shape read_shape() finds in a model written from `spec`: for planning without a file. The
// rope's frequency factors are left out. Error when vocab_size is not given.
ModelShape shape_of(const RandomModelSpec& spec);

// Weights the model has, as papers count them (without rope_freqs.weight).
uint64_t parameter_count(const RandomModelSpec& spec);

// Writes the model to `path` (complete or not at all). The tokenizer is a small made-up byte-level
// BPE, or that of `tokenizer_from` with the vocabulary padded to spec.vocab_size or grown past it.
// `progress` (may be empty) is told the bytes of weights done and in all; it may throw to stop.
// Takes some 100 MB, whatever the size of the model.
void write_random_model(const RandomModelSpec& spec, const std::string& path,
                        const GgufFile* tokenizer_from = nullptr,
                        const std::function<void(uint64_t done, uint64_t total)>& progress = {});

}  // namespace kvasir
