// A model that another one computes, in f32 on the host, for tests that watch or change some of its
// calls. What Model's defaults say of such models is not asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/model/layers/model.h"

namespace kvasir::test {

class ForwardedModel : public Model {
 public:
  explicit ForwardedModel(const Model& model) : model_(model) {}  // which must outlive it
  const ModelShape& shape() const override { return model_.shape(); }
  const RopeTable& rope(uint32_t layer) const override { return model_.rope(layer); }
  void embed(std::span<const int32_t> ids, float* h) const override { model_.embed(ids, h); }
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override {
    model_.attn_norm(layer, h, n, x);
  }
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override {
    model_.project_qkv(layer, x, n, q, k, v);
  }
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override {
    model_.attn_output(layer, o, n, h);
  }
  void ffn(uint32_t layer, float* h, uint32_t n) const override { model_.ffn(layer, h, n); }
  void logits(const float* h, uint32_t n, float* out) const override { model_.logits(h, n, out); }
  uint64_t weight_bytes() const override { return model_.weight_bytes(); }
  uint64_t weight_bytes_per_token() const override { return model_.weight_bytes_per_token(); }

 private:
  const Model& model_;
};

}  // namespace kvasir::test
