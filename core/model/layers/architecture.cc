// The table of the families.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/architecture.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .pairing = RopePairing::kInterleaved,
     .qkv_bias = false,
     .qk_norm = false,
     .global_every = kAllLayersSlide,
     .pretokenizer = "llama-bpe",
     .add_bos = true},
    {.name = "qwen2",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = true,
     .qk_norm = false,
     .pretokenizer = "qwen2",
     .add_bos = false},
    {.name = "qwen3",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = false,
     .qk_norm = true,
     .pretokenizer = "qwen2",
     .add_bos = false},
    // arXiv:2408.00118
    {.name = "gemma2",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = false,
     .qk_norm = false,
     .post_norms = true,
     .scales_embedding = true,
     .activation = Activation::kGelu,
     .global_every = 2,
     .pretokenizer = "default",
     .add_bos = true},
    // arXiv:2503.19786
    {.name = "gemma3",
     .pairing = RopePairing::kHalfSplit,
     .qkv_bias = false,
     .qk_norm = true,
     .post_norms = true,
     .scales_embedding = true,
     .activation = Activation::kGelu,
     .global_every = 6,
     .sliding_rope_base = 10000.0f,
     .pretokenizer = "default",
     .add_bos = true},
};

// "llama, qwen2 and qwen3"
std::string supported_names() {
  std::string text;
  for (const Architecture& each : kArchitectures) {
    const bool last = &each == std::prev(std::end(kArchitectures));
    if (!text.empty()) text += last ? " and " : ", ";
    text += each.name;
  }
  return text;
}

}  // namespace

const Architecture& architecture(std::string_view name, const std::string& where) {
  const auto* const found =
      std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                   [&](const Architecture& each) { return each.name == name; });
  if (found != std::end(kArchitectures)) return *found;
  throw input_error(where + "architecture '" + std::string(name.substr(0, 64)) +
                    "' is not supported; supported are " + supported_names());
}

void take_arithmetic(const Architecture& family, ModelShape& shape) {
  shape.rope.pairing = family.pairing;
  shape.post_norms = family.post_norms;
  shape.activation = family.activation;
  if (family.scales_embedding) shape.embedding_scale = std::sqrt(static_cast<float>(shape.d_model));
  // The 27B models of Gemma 2 and 3 divide by the width per head, which is not head_dim
  // (query_pre_attn_scalar of their configurations); their files do not say so.
  const bool is_27b = (family.name == "gemma2" && shape.n_layers == 46) ||
                      (family.name == "gemma3" && shape.n_layers == 62);
  if (is_27b)
    shape.softmax_scale =
        1.0f / std::sqrt(static_cast<float>(shape.d_model) / static_cast<float>(shape.n_q_heads));
}

std::vector<uint32_t> sliding_windows(uint32_t n, uint32_t n_layers, uint32_t global_every) {
  std::vector<uint32_t> windows(n_layers, n);
  if (global_every == kAllLayersSlide) return windows;
  for (uint32_t layer = global_every; layer <= n_layers; layer += global_every)
    windows[layer - 1] = 0;
  return windows;
}

RopeConfig sliding_rope(const Architecture& family, const ModelShape& shape, float base) {
  RopeConfig rope = shape.rope;
  if (base == 0.0f) base = family.sliding_rope_base;
  if (base == 0.0f) return rope;
  rope.base = base;
  rope.scaling = RopeScaling::kNone;
  rope.factor = rope.attn_factor = 1.0f;
  rope.freq_factors.clear();
  return rope;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Architecture& each : kArchitectures) names.emplace_back(each.name);
  return names;
}

}  // namespace kvasir
