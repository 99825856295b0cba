// A model that says where the time of its layers goes, and what it projects.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tools/kvasir/session/wrapped_model.h"

namespace kvasir::tool {

class TimedModel final : public WrappedModel {
 public:
  using WrappedModel::WrappedModel;

  // Since reset_times(), in nanoseconds.
  struct Times {
    uint64_t projections = 0;  // of attention: its norm, q, k, v and the output's; on a device with
                               // RoPE, and without the output's, which is in ffn; where q, k and v
                               // stay on a device all but the last layer's end
    uint64_t ffn = 0;          // with its norm
    uint64_t logits = 0;       // with the last norm, and embedding rows
    uint64_t products() const { return projections + ffn; }
    uint64_t multiply_adds = 0;  // of products() with the layers' matrices, but in query_ahead()
  };
  const Times& times() const { return times_; }
  void reset_times() { times_ = {}; }

  // Told of each projection, before RoPE; k and v are null where only q was asked for. Null: nobody
  // listens.
  std::function<void(uint32_t layer, uint32_t n, const float* q, const float* k, const float* v)>
      on_project;

  void embed(std::span<const int32_t> ids, float* h) const override;
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  void project_turned(uint32_t layer, const float* x, uint32_t n, std::span<const Turn> turns,
                      float* q, float* k, float* v) const override;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override;
  void ffn(uint32_t layer, float* h, uint32_t n) const override;
  void logits(const float* h, uint32_t n, float* out) const override;
  void query_ahead(uint32_t layer, const float* h, uint32_t n, float* x, float* q) const override;
  // Where a device's work of a layer is waited for.
  std::optional<Projected> projected_on_device() const override;
  void read_projected(const float* which) const override;
  std::optional<bool> hidden_is_finite() const override;

 private:
  mutable Times times_;
};

}  // namespace kvasir::tool
