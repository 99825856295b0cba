// Buffers of a step; see step_buffers.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_buffers.h"

namespace kvasir {

StepBuffers::StepBuffers(const ModelShape& s, uint32_t max_tokens)
    : d_model(s.d_model),
      q_width(uint64_t{s.n_q_heads} * s.head_dim),
      k_width(uint64_t{s.n_kv_heads} * s.head_dim),
      v_width(uint64_t{s.n_kv_heads} * s.v_head_dim),
      h(max_tokens * d_model),
      x(max_tokens * d_model),
      q(max_tokens * q_width),
      k(max_tokens * k_width),
      v(max_tokens * v_width),
      o(max_tokens * (uint64_t{s.n_q_heads} * s.v_head_dim)),
      positions(max_tokens) {}

Activations StepBuffers::activations(bool has_constant) const {
  return {n, positions.data(), x.data(), q.data(), has_constant ? q_constant.data() : nullptr};
}

}  // namespace kvasir
