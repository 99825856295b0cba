// A model whose queries, keys and values are given: it drives the step loop without a transformer,
// so that strategies can be measured where the truth is known.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "core/model/layers/model.h"

namespace kvasir {

// A token is only a name here: Project says what it looks like in each layer, so every position of
// a run that shall differ needs its own id (below 2^24). Logits are zeros, vocab_size of them.
class PrescribedModel final : public Model {
 public:
  // Before RoPE: q [n_q_heads][head_dim], k [n_kv_heads][head_dim], v [n_kv_heads][v_head_dim].
  // k and v are null when the query of `layer` is speculated from the layer before.
  using Project = std::function<void(uint32_t layer, int32_t token, float* q, float* k, float* v)>;
  // o [n][n_q_heads][v_head_dim] of n tokens.
  using Output =
      std::function<void(uint32_t layer, std::span<const int32_t> tokens, const float* o)>;

  // n_layers, heads and dimensions; RopeConfig::n_dims = 0 leaves queries and keys unrotated.
  struct Geometry {
    uint32_t n_layers = 1, n_q_heads = 1, n_kv_heads = 1, head_dim = 64, v_head_dim = 64;
    uint32_t max_context = 4096;
    RopeConfig rope{};
    float softmax_scale = 0.0f;  // 0: 1 / sqrt(head_dim)
    bool may_round = false;
  };
  PrescribedModel(const Geometry& geometry, Project project, Output output);

  const ModelShape& shape() const override { return shape_; }
  const RopeTable& rope(uint32_t) const override { return rope_; }
  bool may_round() const override { return may_round_; }
  bool has_token(int32_t) const override { return true; }
  void embed(std::span<const int32_t> ids, float* h) const override;
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override;
  void ffn(uint32_t, float*, uint32_t) const override {}
  bool ends_at_logits() const override { return false; }  // Output is told of all
  void logits(const float* h, uint32_t n, float* out) const override;
  uint64_t weight_bytes() const override { return 0; }
  uint64_t weight_bytes_per_token() const override { return 0; }

 private:
  ModelShape shape_;
  bool may_round_;
  RopeTable rope_;
  Project project_;
  Output output_;
};

}  // namespace kvasir
