// Shapes of published models, from their config.json; and tiny ones for tests.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/model/layers/architecture.h"
#include "core/model/synthetic/random_model.h"

namespace kvasir {
namespace {

struct Preset {
  const char *name, *architecture;
  uint32_t n_layers, d_model, d_ff, n_q_heads, n_kv_heads, head_dim, vocab_size, context_length;
  float rope_base, norm_eps;
  bool tied_embeddings;
  float llama3_factor;  // 0 = no scaling; from an original context of 8192
  uint32_t sliding_window = 0;
  float softmax_softcap = 0.0f, logits_softcap = 0.0f;
};

// clang-format off
constexpr Preset kPresets[] = {
    // name            arch   layers d_model   d_ff  q  kv   hd   vocab  context  rope  eps   tied llama3
    //   window, soft caps
    {"llama-3.2-1b",    "llama", 16, 2048,  8192, 32,  8,  64, 128256,  131072, 5e5f, 1e-5f, true, 32},
    {"llama-3.2-3b",    "llama", 28, 3072,  8192, 24,  8, 128, 128256,  131072, 5e5f, 1e-5f, true, 32},
    {"llama-3.1-8b",    "llama", 32, 4096, 14336, 32,  8, 128, 128256,  131072, 5e5f, 1e-5f, false, 8},
    {"llama-2-7b",      "llama", 32, 4096, 11008, 32, 32, 128,  32000,    4096, 1e4f, 1e-5f, false, 0},
    {"internlm2.5-7b",  "llama", 32, 4096, 14336, 32,  8, 128,  92544,   32768, 1e6f, 1e-5f, false, 0},
    {"qwen2.5-0.5b",    "qwen2", 24,  896,  4864, 14,  2,  64, 151936,   32768, 1e6f, 1e-6f, true, 0},
    {"qwen2.5-7b",      "qwen2", 28, 3584, 18944, 28,  4, 128, 152064,  131072, 1e6f, 1e-6f, false, 0},
    {"qwen3-0.6b",      "qwen3", 28, 1024,  3072, 16,  8, 128, 151936,   40960, 1e6f, 1e-6f, true, 0},
    {"qwen3-8b",        "qwen3", 36, 4096, 12288, 32,  8, 128, 151936,   40960, 1e6f, 1e-6f, false, 0},
    {"mistral-7b-v0.1", "llama", 32, 4096, 14336, 32,  8, 128,  32000,   32768, 1e4f, 1e-5f, false, 0,
        4096},
    {"gemma-2-2b",     "gemma2", 26, 2304,  9216,  8,  4, 256, 256000,    8192, 1e4f, 1e-6f, true, 0,
        4096, 50, 30},
    {"gemma-3-270m",   "gemma3", 18,  640,  2048,  4,  1, 256, 262144,   32768, 1e6f, 1e-6f, true, 0,
         512},
    {"gemma-3-1b",     "gemma3", 26, 1152,  6912,  4,  1, 256, 262144,   32768, 1e6f, 1e-6f, true, 0,
         512},
    {"tiny-llama-test", "llama",  2,   64,    96,  4,  2,  16,    512, 2097152, 1e4f, 1e-5f, false, 0},
    {"tiny-qwen2-test", "qwen2",  2,   64,    96,  4,  2,  16,    512, 2097152, 1e6f, 1e-6f, true, 0},
    {"tiny-qwen3-test", "qwen3",  2,   64,    96,  4,  2,  32,    512, 2097152, 1e6f, 1e-6f, true, 0},
    {"tiny-gemma2-test", "gemma2", 2,  64,    96,  4,  2,  16,    512, 2097152, 1e4f, 1e-6f, true, 0,
          64, 50, 30},
    {"tiny-gemma3-test", "gemma3", 6,  64,    96,  4,  2,  32,    512, 2097152, 1e6f, 1e-6f, true, 0,
          64},
};
// clang-format on

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> out;
  for (const Preset& p : kPresets) out.emplace_back(p.name);
  return out;
}

RandomModelSpec preset(const std::string& name) {
  const auto at = std::find_if(std::begin(kPresets), std::end(kPresets),
                               [&](const Preset& p) { return p.name == name; });
  if (at == std::end(kPresets)) {
    std::string known;
    for (const Preset& p : kPresets) known += std::string(known.empty() ? "" : ", ") + p.name;
    throw input_error("no model shape is called '" + name + "'; there are " + known);
  }
  RandomModelSpec spec;
  spec.name = at->name;
  spec.architecture = at->architecture;
  spec.n_layers = at->n_layers;
  spec.d_model = at->d_model;
  spec.d_ff = at->d_ff;
  spec.n_q_heads = at->n_q_heads;
  spec.n_kv_heads = at->n_kv_heads;
  spec.head_dim = at->head_dim;
  spec.vocab_size = at->vocab_size;
  spec.context_length = at->context_length;
  spec.rope_base = at->rope_base;
  spec.norm_eps = at->norm_eps;
  spec.tied_embeddings = at->tied_embeddings;
  spec.sliding_window = at->sliding_window;
  spec.softmax_softcap = at->softmax_softcap;
  spec.logits_softcap = at->logits_softcap;
  const Architecture& family = architecture(spec.architecture);
  spec.qkv_bias = family.qkv_bias;
  spec.qk_norm = family.qk_norm;
  if (at->llama3_factor > 0.0f) {
    spec.rope_scaling = "llama3";
    spec.rope_factor = at->llama3_factor;
    spec.rope_original_context = 8192;
  }
  return spec;
}

}  // namespace kvasir
