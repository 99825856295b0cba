// See attention_merge.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_merge.h"

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

// One query head of one pair: its partial results in the order of the spans.
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) merge_pair(const AttentionCall call) {
  const auto pair = load_at<AttentionPair>(call.pairs + sizeof(AttentionPair) * block_x());
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads, v_dim = call.shape.v_dim;
  const Global<const float> lses = global<const float>(call.partial_lse);
  float high = minus_infinity();
  for (uint64_t s = pair.span_begin; s < pair.span_end; ++s) {
    const auto span = load_at<UnitSpan>(call.spans + sizeof(UnitSpan) * s);
    for (uint64_t unit = span.first; unit < span.first + span.n; ++unit)
      high = fmaxf(high, lses[unit * group + block_y()]);
  }
  const uint64_t head =
      uint64_t{pair.query} * call.shape.n_q_heads + uint64_t{pair.kv_head} * group + block_y();
  for (uint32_t d = thread_x(); d < v_dim; d += kThreads) {
    float total = 0.0f, o = 0.0f;
    for (uint64_t s = pair.span_begin; s < pair.span_end; ++s) {
      const auto span = load_at<UnitSpan>(call.spans + sizeof(UnitSpan) * s);
      for (uint64_t unit = span.first; unit < span.first + span.n; ++unit) {
        const uint64_t at = unit * group + block_y();
        const float lse = lses[at];
        if (lse == minus_infinity()) continue;
        const float weight = expf(lse - high);
        total += weight;
        o += weight * load_at<float>(call.partial_o + 4 * (at * v_dim + d));
      }
    }
    const bool is_empty = total == 0.0f;
    global<float>(call.o)[head * v_dim + d] = is_empty ? 0.0f : o / total;
    if (d == 0) global<float>(call.lse)[head] = is_empty ? minus_infinity() : high + logf(total);
  }
}

}  // namespace

void attention_merge(const AttentionCall& call, Stream stream) {
  LaunchShape shape;
  shape.blocks_x = call.n_pairs;
  shape.blocks_y = call.shape.n_q_heads / call.shape.n_kv_heads;
  shape.threads = kThreads;
  launch(merge_pair, shape, stream, call);
}

}  // namespace kvasir::cuda
