// Buffers of a step; see step_buffers.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_buffers.h"

#include <algorithm>

namespace kvasir {

StepBuffers::StepBuffers(const Model& model, uint32_t max_tokens)
    : d_model(model.shape().d_model),
      q_width(uint64_t{model.shape().n_q_heads} * model.shape().head_dim),
      k_width(uint64_t{model.shape().n_kv_heads} * model.shape().head_dim),
      v_width(uint64_t{model.shape().n_kv_heads} * model.shape().v_head_dim),
      o_width(uint64_t{model.shape().n_q_heads} * model.shape().v_head_dim),
      h(max_tokens * d_model),
      x(max_tokens * d_model),
      q(max_tokens * q_width),
      k(max_tokens * k_width),
      v(max_tokens * v_width),
      o(max_tokens * o_width),
      logits(uint64_t{kLogitTokens} * model.shape().vocab_size),
      positions(max_tokens),
      model_(model) {
  for (std::vector<float>* rows : {&h, &x, &q, &k, &v, &o, &logits}) model_.pin(*rows);
}

StepBuffers::~StepBuffers() {
  for (std::vector<float>* rows : {&h, &x, &q, &k, &v, &o, &logits}) model_.unpin(*rows);
}

Activations StepBuffers::activations(bool has_constant) const {
  const ModelRows rows = on_device ? ModelRows(model_, q.data(), on_device->q) : q.data();
  return {n, positions.data(), x.data(), rows, has_constant ? q_constant.data() : nullptr};
}

KvRows StepBuffers::kv_of(const Piece& piece) const {
  const float* all_k = on_device ? on_device->k : k.data();
  const float* all_v = on_device ? on_device->v : v.data();
  return {all_k + piece.q_begin * k_width, all_v + piece.q_begin * v_width, on_device.has_value()};
}

bool StepBuffers::computes_what_is_wanted(uint32_t layer) const {
  return layer + 1 == model_.shape().n_layers && model_.ends_at_logits();
}

uint32_t StepBuffers::n_wanted(const Piece& piece) const {
  const uint32_t end = piece.q_begin + piece.n_q;
  const auto first = std::lower_bound(wanted.begin(), wanted.end(), piece.q_begin);
  return first == wanted.end() || *first >= end ? 0 : end - *first;
}

AttentionRows StepBuffers::attention_rows() {
  if (on_device) return {on_device->o, on_device->lse, true};
  return {o.data()};
}

}  // namespace kvasir
