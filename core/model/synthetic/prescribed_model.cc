// A model of given queries, keys and values; see prescribed_model.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/synthetic/prescribed_model.h"

#include <algorithm>

namespace kvasir {

PrescribedModel::PrescribedModel(const Geometry& geometry, Project project, Output output)
    : may_round_(geometry.may_round),
      rope_(geometry.rope, geometry.max_context),
      project_(std::move(project)),
      output_(std::move(output)) {
  shape_.architecture = "prescribed";
  shape_.name = "prescribed";
  shape_.n_layers = geometry.n_layers;
  shape_.d_model = 1;  // the token's id, exact in f32 up to 2^24
  shape_.d_ff = 1;
  shape_.vocab_size = 1;
  shape_.n_q_heads = geometry.n_q_heads;
  shape_.n_kv_heads = geometry.n_kv_heads;
  shape_.head_dim = geometry.head_dim;
  shape_.v_head_dim = geometry.v_head_dim;
  shape_.max_context = geometry.max_context;
  shape_.softmax_scale = geometry.softmax_scale;
  shape_.rope = geometry.rope;
}

void PrescribedModel::embed(std::span<const int32_t> ids, float* h) const {
  std::transform(ids.begin(), ids.end(), h, [](int32_t id) { return static_cast<float>(id); });
}

void PrescribedModel::attn_norm(uint32_t, const float* h, uint32_t n, float* x) const {
  std::copy(h, h + n, x);
}

void PrescribedModel::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                                  float* v) const {
  const size_t q_width = size_t{shape_.n_q_heads} * shape_.head_dim;
  const size_t k_width = size_t{shape_.n_kv_heads} * shape_.head_dim;
  const size_t v_width = size_t{shape_.n_kv_heads} * shape_.v_head_dim;
  for (uint32_t i = 0; i < n; ++i)
    project_(layer, static_cast<int32_t>(x[i]), q + i * q_width, k ? k + i * k_width : nullptr,
             v ? v + i * v_width : nullptr);
}

void PrescribedModel::attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const {
  std::vector<int32_t> tokens(n);
  std::transform(h, h + n, tokens.begin(), [](float id) { return static_cast<int32_t>(id); });
  output_(layer, tokens, o);
}

void PrescribedModel::logits(const float*, uint32_t n, float* out) const {
  std::fill(out, out + n, 0.0f);
}

}  // namespace kvasir
