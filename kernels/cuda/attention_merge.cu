// See attention_merge.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_merge.h"

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kMergeWarps = 8, kMergeThreads = kMergeWarps * kWarpLanes;
// Units whose partial results are on their way to a warp at once: a block of threads merges all of
// a long context alone, so that its loads, not the memory, are the limit.
constexpr uint32_t kUnitsAhead = 8;

// One query head of one pair.
struct MergeHead {
  AttentionPair pair;
  uint64_t lses, partial;  // of the head, of unit 0
  uint32_t group, v_dim;

  KVASIR_DEVICE void load(const AttentionCall& call) {
    pair = load_at<AttentionPair>(call.pairs + sizeof(AttentionPair) * block_x());
    group = call.shape.n_q_heads / call.shape.n_kv_heads;
    v_dim = call.shape.v_dim;
    lses = call.partial_lse + 4 * uint64_t{block_y()};
    partial = call.partial_o + 4 * uint64_t{block_y()} * v_dim;
  }
  KVASIR_DEVICE float lse(uint64_t unit) const { return load_at<float>(lses + 4 * unit * group); }
  KVASIR_DEVICE float element(uint64_t unit, uint32_t d) const {
    return load_at<float>(partial + 4 * (unit * group * v_dim + d));
  }
};

// The largest lse of the pair, in all threads.
KVASIR_DEVICE float highest_lse(const AttentionCall& call, const MergeHead& head,
                                Shared<float> highs) {
  float high = minus_infinity();
  for (uint64_t s = head.pair.span_begin; s < head.pair.span_end; ++s) {
    const auto span = load_at<UnitSpan>(call.spans + sizeof(UnitSpan) * s);
    for (uint64_t i = thread_x(); i < span.n; i += kMergeThreads)
      high = fmaxf(high, head.lse(span.first + i));
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
    high = fmaxf(high, shuffle_xor(kAllLanes, high, lanes));
  if (thread_x() % kWarpLanes == 0) highs[thread_x() / kWarpLanes] = high;
  block_sync();
  for (uint32_t w = 0; w < kMergeWarps; ++w) high = fmaxf(high, highs[w]);
  return high;
}

// Sums of a warp over some units, in their order: of weights, and of elements lane + 32 i of o.
template <uint32_t kElements>
struct UnitSums {
  float total = 0.0f, o[kElements] = {};

  // Every kMergeWarps-th unit of each span, from `first` on.
  KVASIR_DEVICE void add_spans(const AttentionCall& call, const MergeHead& head, float high,
                               uint32_t first) {
    for (uint64_t s = head.pair.span_begin; s < head.pair.span_end; ++s) {
      const auto span = load_at<UnitSpan>(call.spans + sizeof(UnitSpan) * s);
      for (uint64_t unit = first; unit < span.n; unit += kMergeWarps * kUnitsAhead)
        add_units(head, high, span.first + unit, span.first + span.n);
    }
  }

 private:
  KVASIR_DEVICE void add_units(const MergeHead& head, float high, uint64_t first, uint64_t end) {
    const uint32_t lane = thread_x() % kWarpLanes;
    float lse[kUnitsAhead], x[kUnitsAhead][kElements];
    KVASIR_UNROLL
    for (uint32_t u = 0; u < kUnitsAhead; ++u) {
      const uint64_t unit = first + u * kMergeWarps;
      lse[u] = unit < end ? head.lse(unit) : minus_infinity();
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kElements; ++i) {
        const uint32_t d = lane + kWarpLanes * i;
        x[u][i] = unit < end && d < head.v_dim ? head.element(unit, d) : 0.0f;
      }
    }
    KVASIR_UNROLL
    for (uint32_t u = 0; u < kUnitsAhead; ++u) {
      if (lse[u] == minus_infinity()) continue;
      const float weight = expf(lse[u] - high);
      total += weight;
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kElements; ++i) o[i] += weight * x[u][i];
    }
  }
};

template <uint32_t kElements>
KVASIR_KERNEL void KVASIR_BOUNDS(kMergeThreads) merge_pair(const AttentionCall call) {
  SharedMemory shared;
  const Shared<float> highs = shared.take<float>(kMergeWarps);
  const Shared<float> totals = shared.take<float>(kMergeWarps);
  const Shared<float> sums = shared.take<float>(kMergeWarps * kElements * kWarpLanes);
  MergeHead head;
  head.load(call);
  const float high = highest_lse(call, head, highs);
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  UnitSums<kElements> mine;
  mine.add_spans(call, head, high, warp);
  if (lane == 0) totals[warp] = mine.total;
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kElements; ++i)
    sums[(warp * kElements + i) * kWarpLanes + lane] = mine.o[i];
  block_sync();
  const uint64_t row = uint64_t{head.pair.query} * call.shape.n_q_heads +
                       uint64_t{head.pair.kv_head} * head.group + block_y();
  for (uint32_t d = thread_x(); d < head.v_dim; d += kMergeThreads) {
    float total = 0.0f, o = 0.0f;
    for (uint32_t w = 0; w < kMergeWarps; ++w) {
      total += totals[w];
      o += sums[w * kElements * kWarpLanes + d];
    }
    const bool is_empty = total == 0.0f;
    global<float>(call.o)[row * head.v_dim + d] = is_empty ? 0.0f : o / total;
    if (d == 0) global<float>(call.lse)[row] = is_empty ? minus_infinity() : high + logf(total);
  }
}

template <uint32_t kElements>
void launch_merge(const AttentionCall& call, Stream stream) {
  SharedSize shared;
  shared.add<float>(kMergeWarps);
  shared.add<float>(kMergeWarps);
  shared.add<float>(kMergeWarps * kElements * kWarpLanes);
  LaunchShape shape;
  shape.blocks_x = call.n_pairs;
  shape.blocks_y = call.shape.n_q_heads / call.shape.n_kv_heads;
  shape.threads = kMergeThreads;
  shape.shared_bytes = shared.bytes;
  launch(merge_pair<kElements>, shape, stream, call);
}

}  // namespace

void attention_merge(const AttentionCall& call, Stream stream) {
  if (call.shape.v_dim <= 4 * kWarpLanes) return launch_merge<4>(call, stream);
  launch_merge<kMaxHeadDim / kWarpLanes>(call, stream);
}

}  // namespace kvasir::cuda
