// What the tests of blending share: engines wide enough for a blend, and chunks of made-up tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/blend/blender.h"
#include "tests/core/runtime/support.h"

namespace kvasir::test {

inline const std::string kBlendCache =
    "[cache]\nblock_size = 8\nchunk_size = 32\nsink_tokens = 4\nwindow_tokens = 16\n"
    "[selector]\nplugin = 'kvasir.dense'\n";
constexpr TokenId kBos = 299;

inline EngineOptions wide() {
  EngineOptions options;
  options.max_step_tokens = 512;
  return options;
}

// Not multiples of a block, one token among them, one longer than a piece of a prompt.
inline std::vector<std::vector<TokenId>> some_chunks() {
  std::vector<std::vector<TokenId>> chunks;
  for (const size_t n : {13, 1, 41, 8, 23})
    chunks.push_back(some_tokens(n, static_cast<uint32_t>(100 + n)));
  return chunks;
}

inline constexpr uint32_t kWidth = 2 * 16;  // two kv heads of 16
inline const std::vector<uint32_t> kOrder = {2, 0, 1, 4, 3};

// A blender, its prompt, and the same prompt as plain tokens.
struct BlendWorld {
  BlendWorld(Engine& in, const Model& model, const std::vector<uint32_t>& order, bool has_bos,
             bool behind_bos)
      : engine(in), blender(in, model.shape(), 0, behind_bos ? std::optional(kBos) : std::nullopt) {
    const auto chunks = some_chunks();
    if (has_bos) prompt.lead = {kBos};
    prompt.question = some_tokens(9, 77);
    plain = prompt.lead;
    for (const uint32_t i : order) {
      prompt.chunks.push_back(blender.chunks().add(chunks[i]));
      plain.insert(plain.end(), chunks[i].begin(), chunks[i].end());
    }
    n_context = static_cast<uint32_t>(plain.size());
    n_chunk_tokens = n_context - static_cast<uint32_t>(prompt.lead.size());
    plain.insert(plain.end(), prompt.question.begin(), prompt.question.end());
  }

  Engine& engine;
  Blender blender;
  BlendPrompt prompt;
  std::vector<TokenId> plain;
  uint32_t n_context = 0, n_chunk_tokens = 0;
};

inline BlendConfig config_of(BlendMode mode, double ratio = 0.15) {
  BlendConfig config;
  config.mode = mode;
  config.ratio = ratio;
  return config;
}

// K and V of all tokens of a layer.
inline std::pair<std::vector<float>, std::vector<float>> kv_of(Engine& engine, SequenceId seq,
                                                               uint32_t layer, uint32_t width) {
  const std::vector<uint32_t> all = up_to(engine.kv_len(seq));
  std::vector<float> k(all.size() * width), v(k.size());
  engine.read_kv(seq, layer, all, k.data(), v.data());
  return {k, v};
}

inline std::vector<float> decoded(Engine& engine, SequenceId seq) {
  std::vector<float> all;
  for (uint32_t i = 0; i < 12; ++i) {
    const auto logits = decode(engine, seq, token_at(i));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace kvasir::test
