// What the model computes in a step, of all its queries, in memory that is pinned for a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/layers/model.h"
#include "core/runtime/blocks/token_values.h"
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
  KvRows kv_of(const Piece& piece) const;
  AttentionRows attention_rows();
  // Whether the layer computes behind its projections what is wanted, and that alone: the last one,
  // where the model ends at logits.
  bool computes_what_is_wanted(uint32_t layer) const;
  // The piece's queries from the first on that is wanted.
  uint32_t n_wanted(const Piece& piece) const;

  uint64_t d_model, q_width, k_width, v_width, o_width;  // floats per token
  uint32_t n = 0;                                        // queries of the step
  std::vector<uint32_t> wanted;  // ascending, of these: whose hidden states are read in the end
  std::vector<float> h, x, q, k, v, o, logits, q_constant;
  // Where q, k and v of the layer lie, and o and lse go to, instead.
  std::optional<Model::Projected> on_device;
  std::vector<uint32_t> positions;

 private:
  const Model& model_;
};

}  // namespace kvasir
