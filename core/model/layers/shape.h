// What a model file says about its transformer: counts, widths, and the options it was built with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/layers/rope.h"

namespace kvasir {

// Of the gate in a feed-forward network: SiLU, or GELU in its tanh form.
enum class Activation { kSilu, kGelu };

struct ModelShape {
  std::string architecture;  // as its file names it
  std::string name;
  uint32_t n_layers = 0, d_model = 0, d_ff = 0, vocab_size = 0;
  uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, v_head_dim = 0;
  uint32_t max_context = 0;  // what the file claims, tokens
  float norm_eps = 1e-5f;
  bool qkv_bias = false, qk_norm = false, tied_embeddings = false;
  bool post_norms = false;  // norms of what attention and feed-forward add to the stream
  Activation activation = Activation::kSilu;
  float embedding_scale = 1.0f;
  float softmax_scale = 0.0f;                           // 0: 1 / sqrt(head_dim)
  float softmax_softcap = 0.0f, logits_softcap = 0.0f;  // c tanh(x / c); 0: none
  // [n_layers] how many tokens a query of the layer sees, its own included; 0: all before it.
  // Empty: all layers see all.
  std::vector<uint32_t> sliding_windows;
  RopeConfig rope, sliding_rope;  // the second one of layers with a sliding window
  uint32_t sliding_window(uint32_t layer) const {
    return sliding_windows.empty() ? 0 : sliding_windows[layer];
  }
  uint32_t n_sliding_layers() const;
  float attention_scale() const;  // of q.k before the softmax
  uint32_t group_size() const { return n_q_heads / n_kv_heads; }
  // Bytes of K and V per token over all layers for the given element sizes.
  uint64_t kv_bytes_per_token(double bytes_k, double bytes_v) const;
};

// Reads and checks the shape only: for `plan` and `model info`. Error names key and file.
ModelShape read_shape(const GgufFile& file);

}  // namespace kvasir
