// See attention_decode.h: partial results per split of the keys.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_decode.h"

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

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

// o += weights[key][head] * v[key] of the tile's keys.
template <KvType kType, uint32_t kHeads>
KVASIR_DEVICE void add_values(Softmax<kHeads>& state, uint32_t v_dim, Shared<const KeyRow> rows,
                              Shared<const uint32_t> types, uint32_t seen,
                              Shared<const float> weights) {
  const uint32_t lane = thread_x() % kWarpLanes;
  const uint32_t width = lanes_per_row(v_dim), rows_at_once = kWarpLanes / width;
  constexpr uint32_t kAhead = kLoadsAhead<kType>;
  for (uint32_t first = 0; first < kTile; first += rows_at_once * kAhead) {
    KvChunk<kType> raw[kAhead];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t row = first + i * rows_at_once + lane / width;
      const uint32_t type = seen >> row & 1u ? types[row] >> 8 : 0u;
      if (type != 0) load_chunk(raw[i], type, read_as<KeyRow>(rows + row).v, lane % width, v_dim);
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t row = first + i * rows_at_once + lane / width;
      float v[kChunk];
      raw[i].floats(v);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) {
        const float weight = weights[row * kHeads + h];
        KVASIR_UNROLL
        for (uint32_t d = 0; d < kChunk; ++d) state.o[h][d] += weight * v[d];
      }
    }
  }
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
    const uint64_t at = unit * group + first_head + h;
    const bool is_empty = total == 0.0f;
    const Global<float> to = global<float>(call.partial_o + 4 * (at * v_dim + d));
    to[0] = is_empty ? 0.0f : o / total;
    if (d == 0)
      global<float>(call.partial_lse)[at] = is_empty ? minus_infinity() : high + logf(total);
  }
}

// The block's part of a unit: kHeads heads of one query over `n_tiles` tiles of keys.
template <KvType kType, uint32_t kHeads>
KVASIR_DEVICE void attend_tiles(const AttentionCall& call, const AttentionRange& range,
                                const AttentionPart& part, uint64_t unit, uint32_t query,
                                uint32_t first_head, uint64_t first_slot, uint64_t n_tiles) {
  SharedMemory shared;
  const Shared<KeyRow> all_rows = shared.take<KeyRow>(kThreads);
  const Shared<uint32_t> all_types = shared.take<uint32_t>(kThreads);
  const Shared<float> all_weights = shared.take<float>(kThreads * kHeads);
  const Shared<float> highs = shared.take<float>(kWarps * kHeads);
  const Shared<float> totals = shared.take<float>(kWarps * kHeads);
  const Shared<float> sums = shared.take<float>(kThreads * kHeads * kChunk);
  const auto q_pos = load_at<uint32_t>(part.q_pos + uint64_t{4} * query);

  QueryChunk<kHeads> q;
  q.load(call.shape, part, query, range.kv_head, first_head);
  Softmax<kHeads> state;
  state.clear();

  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  const Shared<KeyRow> rows = all_rows + warp * kTile;
  const Shared<uint32_t> types = all_types + warp * kTile;
  const Shared<float> weights = all_weights + warp * kTile * kHeads;
  for (uint64_t tile = warp; tile < n_tiles; tile += kWarps) {
    const KeySlot key = key_of_slot(call, part, range, first_slot + tile * kTile + lane);
    const bool is_seen = sees(part, q_pos, key);
    const uint32_t seen = ballot(kAllLanes, is_seen);
    if (seen == 0) continue;
    write_as(rows + lane, KeyRow{key.k, key.v});
    types[lane] = key.types;
    warp_sync();
    dot_products<kType, kHeads>(q, call.shape.head_dim, rows, types, seen, weights);
    warp_sync();
    KVASIR_UNROLL
    for (uint32_t h = 0; h < kHeads; ++h) {
      const float dot = weights[lane * kHeads + h];
      const bool is_there = is_seen && first_head + h < group;
      const float logit =
          is_there ? logit_of(call.shape, part, key.item, first_head + h, dot) : minus_infinity();
      weights[lane * kHeads + h] = state.add(h, logit);
    }
    warp_sync();
    add_values<kType, kHeads>(state, call.shape.v_dim, rows, types, seen, weights);
    warp_sync();  // the next tile writes what this one reads
  }
  store_unit<kHeads>(call, unit, first_head, state, sums, highs, totals);
}

template <KvType kType, uint32_t kHeads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) attend_unit(const AttentionCall call) {
  const AttentionRange range = range_of_block(call.ranges, call.n_ranges, block_x());
  const auto part = load_at<AttentionPart>(call.parts + sizeof(AttentionPart) * range.part);
  const uint64_t n_splits = (range.slot_end - range.slot_begin + kSplitSlots - 1) / kSplitSlots;
  const uint64_t block = block_x() - range.first_block, query = block / n_splits;
  const uint64_t split = range.slot_begin / kSplitSlots + block % n_splits;
  attend_tiles<kType, kHeads>(call, range, part, range.first_unit + query * range.n_splits + split,
                              range.q_begin + static_cast<uint32_t>(query), block_y() * kHeads,
                              split * kSplitSlots, kTilesOfSplit);
}

// One query head of a unit of a prefill range, if it is marked and all its keys are there.
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) repeat_row(const AttentionCall call) {
  const uint64_t ranges = call.ranges + sizeof(AttentionRange) * call.n_ranges;
  const AttentionRange range = range_of_block(ranges, call.n_prefill_ranges, block_x());
  const auto part = load_at<AttentionPart>(call.parts + sizeof(AttentionPart) * range.part);
  const uint64_t n_slots = n_slots_of(call, part, range);
  if (range.slot_begin != 0 || range.slot_end != n_slots) return;
  const uint64_t query = block_x() - range.first_block, unit = range.first_unit + query;
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  const auto marked = load_at<float>(call.partial_lse + 4 * (unit * group + block_y()));
  if (marked == marked) return;
  attend_tiles<KvType::kMixed, 1>(call, range, part, unit,
                                  range.q_begin + static_cast<uint32_t>(query), block_y(), 0,
                                  (n_slots + kTile - 1) / kTile);
}

template <uint32_t kHeads>
uint32_t shared_bytes() {
  SharedSize shared;
  shared.add<KeyRow>(kThreads);
  shared.add<uint32_t>(kThreads);
  shared.add<float>(kThreads * kHeads);
  shared.add<float>(kWarps * kHeads);
  shared.add<float>(kWarps * kHeads);
  shared.add<float>(kThreads * kHeads * kChunk);
  return shared.bytes;
}

template <KvType kType, uint32_t kHeads>
void launch_units(const AttentionCall& call, Stream stream) {
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>(call.n_blocks);
  shape.blocks_y = (group + kHeads - 1) / kHeads;
  shape.threads = kThreads;
  shape.shared_bytes = shared_bytes<kHeads>();
  launch(attend_unit<kType, kHeads>, shape, stream, call);
}

template <KvType kType>
void launch_type(const AttentionCall& call, Stream stream) {
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  if (group == 1) return launch_units<kType, 1>(call, stream);
  if (group <= 4) return launch_units<kType, 4>(call, stream);
  launch_units<kType, 8>(call, stream);
}

}  // namespace

void attention_decode(const AttentionCall& call, Stream stream) {
  switch (call.type) {
    case KvType::kF32:
      launch_type<KvType::kF32>(call, stream);
      break;
    case KvType::kF16:
      launch_type<KvType::kF16>(call, stream);
      break;
    case KvType::kBF16:
      launch_type<KvType::kBF16>(call, stream);
      break;
    case KvType::kQ8_0:
      launch_type<KvType::kQ8_0>(call, stream);
      break;
    case KvType::kMixed:
    case KvType::kQ4_0:
    case KvType::kFp8:
      launch_type<KvType::kMixed>(call, stream);
      break;
  }
}

void attention_repeat(const AttentionCall& call, Stream stream) {
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>(call.n_prefill_blocks);
  shape.blocks_y = call.shape.n_q_heads / call.shape.n_kv_heads;
  shape.threads = kThreads;
  shape.shared_bytes = shared_bytes<1>();
  launch(repeat_row, shape, stream, call);
}

}  // namespace kvasir::cuda
