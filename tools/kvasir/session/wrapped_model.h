// A model around another one, for tools that watch it: each function passes the call on, but for
// project_turned() and finish_layer(), which call those that they are made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/model/layers/model.h"

namespace kvasir::tool {

class WrappedModel : public Model {
 public:
  explicit WrappedModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}

  const ModelShape& shape() const override { return model_->shape(); }
  const RopeTable& rope(uint32_t layer) const override { return model_->rope(layer); }
  Compute compute() const override { return model_->compute(); }
  bool may_round() const override { return model_->may_round(); }
  bool tokens_are_independent() const override { return model_->tokens_are_independent(); }
  bool has_token(int32_t id) const override { return model_->has_token(id); }
  void embed(std::span<const int32_t> ids, float* h) const override { model_->embed(ids, h); }
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override {
    model_->attn_norm(layer, h, n, x);
  }
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override {
    model_->project_qkv(layer, x, n, q, k, v);
  }
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override {
    model_->attn_output(layer, o, n, h);
  }
  void ffn(uint32_t layer, float* h, uint32_t n) const override { model_->ffn(layer, h, n); }
  bool ends_at_logits() const override { return model_->ends_at_logits(); }
  void logits(const float* h, uint32_t n, float* out) const override { model_->logits(h, n, out); }
  void query_ahead(uint32_t layer, const float* h, uint32_t n, float* x, float* q) const override {
    model_->query_ahead(layer, h, n, x, q);
  }
  void read_hidden(float* h, uint32_t first, uint32_t n) const override {
    model_->read_hidden(h, first, n);
  }
  void read_input(float* x, uint32_t first, uint32_t n) const override {
    model_->read_input(x, first, n);
  }
  void read_projected(const float* which) const override { model_->read_projected(which); }
  std::optional<Projected> projected_on_device() const override {
    return model_->projected_on_device();
  }
  bool is_device_memory(const void* data) const override { return model_->is_device_memory(data); }
  std::optional<bool> hidden_is_finite() const override { return model_->hidden_is_finite(); }
  void pin(std::span<float> rows) const override { model_->pin(rows); }
  void unpin(std::span<float> rows) const noexcept override { model_->unpin(rows); }
  uint64_t weight_bytes() const override { return model_->weight_bytes(); }
  uint64_t weight_bytes_per_token() const override { return model_->weight_bytes_per_token(); }
  Placement placement() const override { return model_->placement(); }

 protected:
  Model& inner() const { return *model_; }

 private:
  std::unique_ptr<Model> model_;
};

}  // namespace kvasir::tool
