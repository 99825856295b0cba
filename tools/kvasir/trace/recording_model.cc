// See recording_model.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/recording_model.h"

#include <algorithm>

#include "core/error.h"

namespace kvasir::tool {

void RecordingModel::record(Trace& trace) {
  trace_ = &trace;
  next_ = 0;
  recorded_.assign(shape().n_layers, kNotRecorded);
  const std::vector<uint32_t>& layers = trace.header().layers;
  for (uint32_t i = 0; i < layers.size(); ++i) recorded_[layers[i]] = i;
}

template <class Fn>
void RecordingModel::each_decoded(uint32_t n, const Fn& fn) const {
  const uint32_t context = trace_->header().context;
  for (uint32_t t = 0; t < n; ++t)
    if (first_ + t >= context) fn(t, first_ + t - context);
}

void RecordingModel::embed(std::span<const int32_t> ids, float* h) const {
  if (!trace_) return inner().embed(ids, h);
  first_ = next_;
  next_ += static_cast<uint32_t>(ids.size());
  if (next_ > trace_->header().n_tokens())
    throw Error(ErrorKind::kInternal, "a trace of " + std::to_string(trace_->header().n_tokens()) +
                                          " tokens was given more");
  std::copy(ids.begin(), ids.end(), trace_->tokens().begin() + first_);
  inner().embed(ids, h);
}

void RecordingModel::attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const {
  inner().attn_norm(layer, h, n, x);
  if (!trace_) return;
  inner().read_input(x, 0, n);
  const uint64_t d_model = shape().d_model;
  if (const uint32_t at = recorded_[layer]; at != kNotRecorded)
    each_decoded(n, [&](uint32_t t, uint32_t row) {
      trace_->write_row(TraceTensor::kX, at, row, x + t * d_model);
    });
  if (layer + 1 >= shape().n_layers || recorded_[layer + 1] == kNotRecorded) return;
  ahead_.resize(trace_->row_width(TraceTensor::kAhead));
  each_decoded(n, [&](uint32_t t, uint32_t row) {
    inner().project_qkv(layer + 1, x + t * d_model, 1, ahead_.data(), nullptr, nullptr);
    trace_->write_row(TraceTensor::kAhead, recorded_[layer + 1], row, ahead_.data());
  });
}

void RecordingModel::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                                 float* v) const {
  inner().project_qkv(layer, x, n, q, k, v);
  if (!trace_) return;
  const uint32_t at = recorded_[layer];
  if (at == kNotRecorded || !k) return;
  for (uint32_t t = 0; t < n; ++t)
    for (const auto& [tensor, from] :
         {std::pair{TraceTensor::kQ, q}, {TraceTensor::kK, k}, {TraceTensor::kV, v}})
      trace_->write_row(tensor, at, first_ + t, from + uint64_t{t} * trace_->row_width(tensor));
}

}  // namespace kvasir::tool
