// A model that records what it computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "core/model/layers/model.h"
#include "tools/kvasir/trace/trace_file.h"

namespace kvasir::tool {

// Of one sequence from its first token on: the calls come in the order of its tokens, and each
// token comes once.
class RecordingModel final : public Model {
 public:
  // `trace` must outlive this; its header says what is recorded.
  RecordingModel(std::unique_ptr<Model> model, Trace& trace);

  const ModelShape& shape() const override { return model_->shape(); }
  const RopeTable& rope(uint32_t layer) const override { return model_->rope(layer); }
  Compute compute() const override { return model_->compute(); }
  bool tokens_are_independent() const override { return model_->tokens_are_independent(); }
  bool has_token(int32_t id) const override { return model_->has_token(id); }
  void embed(std::span<const int32_t> ids, float* h) const override;
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override {
    model_->attn_output(layer, o, n, h);
  }
  void ffn(uint32_t layer, float* h, uint32_t n) const override { model_->ffn(layer, h, n); }
  void logits(const float* h, uint32_t n, float* out) const override { model_->logits(h, n, out); }
  uint64_t weight_bytes() const override { return model_->weight_bytes(); }
  uint64_t weight_bytes_per_token() const override { return model_->weight_bytes_per_token(); }

 private:
  static constexpr uint32_t kNotRecorded = UINT32_MAX;

  // fn(token of the call, its row among decoded tokens), of those that are decoded.
  template <class Fn>
  void each_decoded(uint32_t n, const Fn& fn) const;

  std::unique_ptr<Model> model_;
  Trace& trace_;
  std::vector<uint32_t> recorded_;  // [n_layers] the layer's index in the trace, or kNotRecorded
  // The model's calls say no positions: those of the step at hand are [first_, first_ + n).
  mutable uint32_t first_ = 0, next_ = 0;
  mutable std::vector<float> ahead_;
};

}  // namespace kvasir::tool
