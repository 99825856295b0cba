// What the model computes in a step, of all its queries, in memory that is pinned for a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/layers/model.h"
#include "core/runtime/step/pass.h"

namespace kvasir {

struct StepBuffers {
  static constexpr uint32_t kLogitTokens = 16;  // whose logits are computed at a time

  // max_tokens: of one step. The model must outlive it.
  StepBuffers(const Model& model, uint32_t max_tokens);
  ~StepBuffers();
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  // As the stages of a strategy see them. has_constant: it asks for constant positions, too.
  Activations activations(bool has_constant) const;
  // K and V of a piece, [n_q][n_kv_heads][head_dim] and [n_q][n_kv_heads][v_head_dim].
  const float* k_of(const Piece& piece) const { return k.data() + piece.q_begin * k_width; }
  const float* v_of(const Piece& piece) const { return v.data() + piece.q_begin * v_width; }

  uint64_t d_model, q_width, k_width, v_width;  // floats per token
  uint32_t n = 0;                               // queries of the step
  std::vector<float> h, x, q, k, v, o, logits, q_constant;
  std::vector<uint32_t> positions;

 private:
  const Model& model_;
};

}  // namespace kvasir
