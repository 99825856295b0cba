// A model that records what it computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tools/kvasir/session/wrapped_model.h"
#include "tools/kvasir/trace/trace_file.h"

namespace kvasir::tool {

// Of one sequence from its first token on: the calls come in the order of its tokens, and each
// token comes once.
class RecordingModel final : public WrappedModel {
 public:
  // Records nothing yet.
  explicit RecordingModel(std::unique_ptr<Model> model) : WrappedModel(std::move(model)) {}

  // The next sequence that is computed goes into `trace`, whose header says which layers; it must
  // outlive this, or the next call.
  void record(Trace& trace);

  void embed(std::span<const int32_t> ids, float* h) const override;
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;

 private:
  static constexpr uint32_t kNotRecorded = UINT32_MAX;

  // fn(token of the call, its row among decoded tokens), of those that are decoded.
  template <class Fn>
  void each_decoded(uint32_t n, const Fn& fn) const;

  Trace* trace_ = nullptr;
  std::vector<uint32_t> recorded_;  // [n_layers] the layer's index in the trace, or kNotRecorded
  // The model's calls say no positions: those of the step at hand are [first_, first_ + n).
  mutable uint32_t first_ = 0, next_ = 0;
  mutable std::vector<float> ahead_;
};

}  // namespace kvasir::tool
