// What decoded tokens attend to, computed beside the engine from the model's queries and the
// sequence's keys: dense attention in f32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "core/runtime/engine.h"
#include "tools/kvasir/session/wrapped_model.h"

namespace kvasir::tool {

// Keeps the queries of calls with one token, which are those of a token that is decoded alone.
class QueryTap final : public WrappedModel {
 public:
  explicit QueryTap(std::unique_ptr<Model> model)
      : WrappedModel(std::move(model)), queries_(shape().n_layers) {}
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  // Before RoPE, of the latest such call; [n_q_heads, head_dim].
  const std::vector<float>& query(uint32_t layer) const { return queries_[layer]; }

 private:
  mutable std::vector<std::vector<float>> queries_;
};

// The probabilities of decoded tokens over the tokens up to them: of a sequence whose tokens are
// decoded one by one, with nothing else between. Keys are stored rotated (KVASIR_K_ROTATED).
class AttentionWatch {
 public:
  // Both must outlive it.
  AttentionWatch(Engine& engine, const QueryTap& tap) : engine_(engine), tap_(tap) {}
  // Whether attention of this engine can be computed here.
  bool can_watch() const { return engine_.geometry().k_state == KVASIR_K_ROTATED; }

  void saw(SequenceId seq);  // its last token was just decoded
  // Of all tokens seen, which are forgotten: [layer][token, q_head] rows over [0, kv_len), one
  // behind the other.
  std::vector<std::vector<float>> rows(SequenceId seq);

 private:
  struct Seen {
    uint32_t pos;
    std::vector<std::vector<float>> queries;  // [layer] rotated to pos
  };
  Engine& engine_;
  const QueryTap& tap_;
  std::vector<Seen> seen_;
};

// CacheBlend's attention deviation (arXiv:2405.16444, section 4.1): the L2 norm of the difference
// of two attention matrices of a layer and head, whose rows are the last tokens of a prompt; mean
// of the q heads and of the layers from 1 on, 0 for fewer layers. a, b: of AttentionWatch::rows(),
// over as many keys.
double attention_deviation(const std::vector<std::vector<float>>& a,
                           const std::vector<std::vector<float>>& b, uint32_t n_q_heads,
                           uint32_t n_tokens);

}  // namespace kvasir::tool
