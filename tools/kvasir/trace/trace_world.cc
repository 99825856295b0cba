// See trace_world.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/trace_world.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace kvasir::tool {

RecallShape TraceWorld::shape_of(const TraceHeader& header, uint32_t sink, uint32_t window) {
  return {.context = header.context,
          .steps = header.steps,
          .sink = sink,
          .window = window,
          .n_layers = static_cast<uint32_t>(header.layers.size()),
          .n_q_heads = header.n_q_heads,
          .n_kv_heads = header.n_kv_heads,
          .head_dim = header.head_dim};
}

TraceWorld::TraceWorld(const Trace& trace, uint32_t sink, uint32_t window, ThreadPool& pool)
    : RecallWorld(shape_of(trace.header(), sink, window), double{trace.header().softmax_scale}),
      trace_(trace) {
  const TraceHeader& h = trace.header();
  if (h.v_head_dim != h.head_dim)
    throw input_error("a trace whose values have " + std::to_string(h.v_head_dim) +
                      " elements and keys " + std::to_string(h.head_dim) + " cannot be replayed");
  const RopeTable rope(h.rope, h.n_tokens());
  std::vector<uint32_t> positions(h.n_tokens());
  std::iota(positions.begin(), positions.end(), 0);
  pool.parallel_for(h.layers.size(), 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (auto layer = static_cast<uint32_t>(begin); layer < end; ++layer) {
      Layer& to = layers_[layer];
      for (uint32_t t = 0; t < h.n_tokens(); ++t)
        project(layer, static_cast<int32_t>(t),
                to.q.data() + uint64_t{t} * h.n_q_heads * h.head_dim,
                to.k.data() + uint64_t{t} * h.n_kv_heads * h.head_dim,
                to.v.data() + uint64_t{t} * h.n_kv_heads * h.head_dim);
      rope.apply(to.q.data(), h.n_tokens(), h.n_q_heads, h.head_dim, positions, h.context);
      rope.apply(to.k.data(), h.n_tokens(), h.n_kv_heads, h.head_dim, positions, h.context);
      for (const std::vector<float>* rotated : {&to.q, &to.k})
        if (!std::all_of(rotated->begin(), rotated->end(),
                         [](float x) { return std::isfinite(x); }))
          throw input_error("layer " + std::to_string(h.layers[layer]) +
                            " of the trace: a query or key is not finite once it is rotated");
    }
  });
}

PrescribedModel::Geometry TraceWorld::geometry() const {
  const TraceHeader& h = trace_.header();
  return {.n_layers = shape_.n_layers,
          .n_q_heads = h.n_q_heads,
          .n_kv_heads = h.n_kv_heads,
          .head_dim = h.head_dim,
          .v_head_dim = h.v_head_dim,
          .max_context = h.n_tokens(),
          .rope = h.rope,
          .softmax_scale = h.softmax_scale};
}

void TraceWorld::project(uint32_t layer, int32_t token, float* q, float* k, float* v) const {
  const auto at = static_cast<uint32_t>(token);
  if (!k) {
    const uint32_t context = trace_.header().context;
    if (trace_.has(TraceTensor::kAhead, layer) && at >= context)
      return trace_.read_row(TraceTensor::kAhead, layer, at - context, q);
    return trace_.read_row(TraceTensor::kQ, layer, at, q);
  }
  trace_.read_row(TraceTensor::kQ, layer, at, q);
  trace_.read_row(TraceTensor::kK, layer, at, k);
  trace_.read_row(TraceTensor::kV, layer, at, v);
}

}  // namespace kvasir::tool
