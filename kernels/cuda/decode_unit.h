// One query's attention over a split of its keys by a block of threads: the softmax of each warp,
// and the result that they merge.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {

// Partial sums of one warp: of lane l and head h, 8 elements of o.
template <uint32_t kHeads>
struct Softmax {
  float o[kHeads][kChunk];
  float high[kHeads];  // largest logit so far, of the warp
  float sum[kHeads];   // of this lane's keys: exp(logit - high)

  KVASIR_DEVICE void clear() {
    KVASIR_UNROLL
    for (uint32_t h = 0; h < kHeads; ++h) {
      high[h] = minus_infinity();
      sum[h] = 0.0f;
      KVASIR_UNROLL
      for (uint32_t d = 0; d < kChunk; ++d) o[h][d] = 0.0f;
    }
  }

  // `logit` is this lane's key's; returns exp(logit - high) with the new high.
  KVASIR_DEVICE float add(uint32_t h, float logit) {
    float highest = logit;
    for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
      highest = fmaxf(highest, shuffle_xor(kAllLanes, highest, lanes));
    highest = fmaxf(highest, high[h]);
    const float keep = high[h] == minus_infinity() ? 0.0f : expf(high[h] - highest);
    const float weight = logit == minus_infinity() ? 0.0f : expf(logit - highest);
    high[h] = highest;
    sum[h] = sum[h] * keep + weight;
    KVASIR_UNROLL
    for (uint32_t d = 0; d < kChunk; ++d) o[h][d] *= keep;
    return weight;
  }
};

// o += weights[key][head] * v[key] of the tile's keys, of which v gives the rows.
template <KvType kType, uint32_t kHeads, class Rows>
KVASIR_DEVICE void add_values(Softmax<kHeads>& state, uint32_t v_dim, const Rows& v,
                              Shared<const float> weights) {
  const uint32_t lane = thread_x() % kWarpLanes;
  const uint32_t width = lanes_per_row(v_dim), rows_at_once = kWarpLanes / width;
  constexpr uint32_t kAhead = Rows::kAhead;
  for (uint32_t first = 0; first < kTile; first += rows_at_once * kAhead) {
    KvChunk<kType> raw[kAhead];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t row = first + i * rows_at_once + lane / width;
      v.load(raw[i], row, lane % width);
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t row = first + i * rows_at_once + lane / width;
      float x[kChunk];
      raw[i].floats(x);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) {
        const float weight = weights[row * kHeads + h];
        KVASIR_UNROLL
        for (uint32_t d = 0; d < kChunk; ++d) state.o[h][d] += weight * x[d];
      }
    }
  }
}

// What a block of threads attends: one query of a range, over one split of its keys.
struct DecodeUnit {
  AttentionRange range;
  AttentionPart part;
  uint64_t unit, first_slot;
  uint32_t query, first_head;  // of the part, of the group

  KVASIR_DEVICE void load(const AttentionCall& call, uint32_t heads) {
    range = range_of_block(call.ranges, call.n_ranges, block_x());
    part = load_at<AttentionPart>(call.parts + sizeof(AttentionPart) * range.part);
    const uint64_t n_splits = (range.slot_end - range.slot_begin + kSplitSlots - 1) / kSplitSlots;
    const uint64_t block = block_x() - range.first_block;
    const uint64_t split = range.slot_begin / kSplitSlots + block % n_splits;
    unit = range.first_unit + block / n_splits * range.n_splits + split;
    query = range.q_begin + static_cast<uint32_t>(block / n_splits);
    first_head = block_y() * heads;
    first_slot = split * kSplitSlots;
  }
};

// Dots of a tile's keys, as this lane's, become exp(logit - high) in place; keys that the query
// does not see, and heads that the group does not have, give 0.
template <uint32_t kHeads>
KVASIR_DEVICE void weigh_keys(const AttentionCall& call, const AttentionPart& part, uint64_t item,
                              bool is_seen, uint32_t first_head, Softmax<kHeads>& state,
                              Shared<float> weights) {
  const uint32_t lane = thread_x() % kWarpLanes;
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  KVASIR_UNROLL
  for (uint32_t h = 0; h < kHeads; ++h) {
    const float dot = weights[lane * kHeads + h];
    const bool is_there = is_seen && first_head + h < group;
    const float logit =
        is_there ? logit_of(call.shape, part, item, first_head + h, dot) : minus_infinity();
    weights[lane * kHeads + h] = state.add(h, logit);
  }
}

// Element d of a partial result, of all keys of a unit and one query head, from unnormalised sums.
KVASIR_DEVICE void store_partial(const AttentionCall& call, uint64_t at, uint32_t d, float high,
                                 float total, float o) {
  const bool is_empty = total == 0.0f;
  const Global<float> to = global<float>(call.partial_o + 4 * (at * call.shape.v_dim + d));
  to[0] = is_empty ? 0.0f : o / total;
  if (d == 0)
    global<float>(call.partial_lse)[at] = is_empty ? minus_infinity() : high + logf(total);
}

// The block's result of one unit: warps in their order, and in each the lanes that took other rows.
template <uint32_t kHeads>
KVASIR_DEVICE void store_unit(const AttentionCall& call, uint64_t unit, uint32_t first_head,
                              Softmax<kHeads>& state, Shared<float> sums, Shared<float> highs,
                              Shared<float> totals) {
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  const uint32_t v_dim = call.shape.v_dim, group = call.shape.n_q_heads / call.shape.n_kv_heads;
  KVASIR_UNROLL
  for (uint32_t h = 0; h < kHeads; ++h) {
    float sum = state.sum[h];
    for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
      sum += shuffle_xor(kAllLanes, sum, lanes);
    if (lane == 0) {
      highs[warp * kHeads + h] = state.high[h];
      totals[warp * kHeads + h] = sum;
    }
    const Shared<float> to = sums + ((warp * kWarpLanes + lane) * kHeads + h) * kChunk;
    KVASIR_UNROLL
    for (uint32_t d = 0; d < kChunk; ++d) to[d] = state.o[h][d];
  }
  block_sync();
  const uint32_t width = lanes_per_row(v_dim);
  for (uint32_t i = thread_x(); i < kHeads * v_dim; i += kThreads) {
    const uint32_t h = i / v_dim, d = i % v_dim;
    if (first_head + h >= group) break;
    float high = minus_infinity();
    for (uint32_t w = 0; w < kWarps; ++w) high = fmaxf(high, highs[w * kHeads + h]);
    float total = 0.0f, o = 0.0f;
    for (uint32_t w = 0; w < kWarps; ++w) {
      const float warp_sum = totals[w * kHeads + h];
      if (warp_sum == 0.0f) continue;
      const float keep = expf(highs[w * kHeads + h] - high);
      float part = 0.0f;
      for (uint32_t row = 0; row < kWarpLanes / width; ++row) {
        const uint32_t from = w * kWarpLanes + row * width + d / kChunk;
        part += sums[(from * kHeads + h) * kChunk + d % kChunk];
      }
      total += keep * warp_sum;
      o += keep * part;
    }
    store_partial(call, unit * group + first_head + h, d, high, total, o);
  }
}

// Query heads that a block of threads takes of a unit.
template <uint32_t kHeads>
struct HeadsOfBlock {};

// start(HeadsOfBlock<n>(), shape): n is 1, 4 or 8, by the group; the shape lacks shared memory.
template <class Start>
void with_unit_shape(const AttentionCall& call, const Start& start) {
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  const auto with = [&]<uint32_t kHeads>(HeadsOfBlock<kHeads> heads) {
    LaunchShape shape;
    shape.blocks_x = static_cast<uint32_t>(call.n_blocks);
    shape.blocks_y = (group + kHeads - 1) / kHeads;
    shape.threads = kThreads;
    start(heads, shape);
  };
  if (group == 1) return with(HeadsOfBlock<1>());
  if (group <= 4) return with(HeadsOfBlock<4>());
  with(HeadsOfBlock<8>());
}

}  // namespace kvasir::cuda
