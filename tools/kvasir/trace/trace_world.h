// Recorded queries, keys and values, as a world over which strategies are measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tools/kvasir/recall/recall_world.h"
#include "tools/kvasir/trace/trace_file.h"

namespace kvasir::tool {

// Its layers are the recorded ones. A query that is asked for without its key is one that a
// selector rehearses from the layer before: `ahead` of the trace.
class TraceWorld final : public RecallWorld {
 public:
  // `trace` must outlive this. Of sink and window only what is forced is said.
  // Error(kInput) when v_head_dim differs from head_dim.
  TraceWorld(const Trace& trace, uint32_t sink, uint32_t window, ThreadPool& pool);

  PrescribedModel::Geometry geometry() const override;
  void project(uint32_t layer, int32_t token, float* q, float* k, float* v) const override;

  static RecallShape shape_of(const TraceHeader& header, uint32_t sink, uint32_t window);

 private:
  const Trace& trace_;
};

}  // namespace kvasir::tool
