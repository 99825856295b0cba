// See record_scores.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/record_scores.h"

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kRecordsAhead = 4;  // loads of a lane that are on their way at once

KVASIR_DEVICE uint32_t width_of(const ScoreCall& call) {
  return call.kind == RecordKind::kMinMax ? 2 * call.head_dim : call.head_dim;
}

// Element `d` of the record times what this returns, summed over d, is the score of query `q`.
KVASIR_DEVICE float packed_element(const ScoreCall& call, uint64_t q, uint32_t d) {
  const bool is_upper = d >= call.head_dim;  // a maximum
  const float x = load_at<float>(q + uint64_t{4} * (is_upper ? d - call.head_dim : d));
  if (call.kind == RecordKind::kMean) return x;
  const float near = 0.5f * (1.0f - call.box_scale), far = 0.5f * (1.0f + call.box_scale);
  return x * ((x < 0.0f) == is_upper ? near : far);
}

// Packed queries of kHeads heads: [head][half of a chunk][chunk][4], so that lanes beside each
// other read 16 bytes beside each other.
template <uint32_t kHeads>
struct PackedQueries {
  Shared<float> at;
  uint32_t n_chunks;

  KVASIR_DEVICE uint32_t place(uint32_t head, uint32_t half, uint32_t chunk) const {
    return ((head * 2 + half) * n_chunks + chunk) * (kChunk / 2);
  }
  // n_heads: of the kv head. Zeros for heads that it does not have, and behind the record.
  KVASIR_DEVICE void pack(const ScoreCall& call, uint64_t queries, uint32_t first_head,
                          uint32_t n_heads) const {
    const uint32_t width = width_of(call);
    for (uint32_t i = thread_x(); i < kHeads * n_chunks * kChunk; i += kThreads) {
      const uint32_t head = i / (n_chunks * kChunk), d = i % (n_chunks * kChunk);
      float x = 0.0f;
      if (d < width && first_head + head < n_heads) {
        const uint64_t q = queries + uint64_t{4} * (first_head + head) * call.head_dim;
        x = packed_element(call, q, d);
        if (call.is_summed)
          for (uint32_t g = 1; g < call.group_size; ++g)
            x += packed_element(call, q + uint64_t{4} * g * call.head_dim, d);
      }
      at[place(head, d % kChunk / 4, d / kChunk) + d % 4] = x;
    }
  }
  KVASIR_DEVICE void load(uint32_t head, uint32_t chunk, float (&q)[kChunk]) const {
    const auto low = read_as<Floats4>(at + place(head, 0, chunk));
    const auto high = read_as<Floats4>(at + place(head, 1, chunk));
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      q[i] = low.at[i];
      q[4 + i] = high.at[i];
    }
  }
};

// 0: there is none.
KVASIR_DEVICE uint64_t record_of(const ScoreCall& call, const ScoreList& list, uint64_t i) {
  if (i >= list.n) return 0;
  const uint32_t block = list.candidates ? load_at<uint32_t>(list.candidates + 4 * i)
                                         : list.first_block + static_cast<uint32_t>(i);
  const uint32_t page = block / call.page_blocks;
  if (page >= list.n_pages) return 0;
  const auto base = load_at<uint64_t>(list.pages + uint64_t{8} * page);
  const uint64_t slot = uint64_t{list.kv_head} * call.page_blocks + block % call.page_blocks;
  return base ? base + slot * call.record_bytes : 0;
}

template <KvType kRecord, uint32_t kHeads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) score_unit(const ScoreCall call) {
  SharedMemory shared;
  const uint32_t width = width_of(call), n_chunks = (width + kChunk - 1) / kChunk;
  const PackedQueries<kHeads> queries{shared.take<float>(kHeads * n_chunks * kChunk), n_chunks};
  const uint32_t index = range_of_unit<ScoreList>(call.lists, call.n_lists, block_x());
  const auto list = load_at<ScoreList>(call.lists + sizeof(ScoreList) * index);
  const uint32_t first_head = block_y() * kHeads, n_heads = call.is_summed ? 1 : call.group_size;
  queries.pack(call, list.q, first_head, n_heads);
  block_sync();

  const uint32_t lanes = lanes_per_row(width), at_once = kWarpLanes / lanes;
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  const uint32_t column = lane % lanes, share = lanes / kHeads;
  const uint32_t step = at_once * kRecordsAhead;
  const uint64_t unit = (block_x() - list.first_unit) * kUnitRecords;
  for (uint32_t first = warp * step; first < kUnitRecords; first += kWarps * step) {
    const uint64_t place = unit + first + lane / lanes;
    uint64_t record[kRecordsAhead];
    float sums[kRecordsAhead][kHeads];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kRecordsAhead; ++i) {
      record[i] = record_of(call, list, place + i * at_once);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) sums[i][h] = 0.0f;
    }
    for (uint32_t chunk = column; chunk < n_chunks; chunk += lanes) {
      KvChunk<kRecord> raw[kRecordsAhead];
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kRecordsAhead; ++i)
        if (record[i]) raw[i].load(record[i], chunk, width);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) {
        float q[kChunk];
        queries.load(h, chunk, q);
        KVASIR_UNROLL
        for (uint32_t i = 0; i < kRecordsAhead; ++i) {
          float x[kChunk];
          raw[i].floats(x);
          KVASIR_UNROLL
          for (uint32_t d = 0; d < kChunk; ++d) sums[i][h] += q[d] * x[d];
        }
      }
    }
    const uint32_t head = first_head + column / share;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kRecordsAhead; ++i) {
      const float sum = sum_over_lanes<kHeads>(sums[i], lanes);
      const uint64_t candidate = place + i * at_once;
      if (column % share == 0 && head < n_heads && candidate < list.n)
        global<float>(list.score)[uint64_t{head} * list.n + candidate] =
            record[i] ? sum : bits_to_float(0xff7fffffu);
    }
  }
}

template <KvType kRecord, uint32_t kHeads>
void launch_units(const ScoreCall& call, uint32_t n_heads, Stream stream) {
  const uint32_t width = call.kind == RecordKind::kMinMax ? 2 * call.head_dim : call.head_dim;
  SharedSize shared;
  shared.add<float>(kHeads * ((width + kChunk - 1) / kChunk) * kChunk);
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>(call.n_units);
  shape.blocks_y = (n_heads + kHeads - 1) / kHeads;
  shape.threads = kThreads;
  shape.shared_bytes = shared.bytes;
  launch(score_unit<kRecord, kHeads>, shape, stream, call);
}

template <KvType kRecord>
void launch_type(const ScoreCall& call, Stream stream) {
  const uint32_t n_heads = call.is_summed ? 1 : call.group_size;
  if (n_heads == 1) return launch_units<kRecord, 1>(call, n_heads, stream);
  if (n_heads <= 4) return launch_units<kRecord, 4>(call, n_heads, stream);
  launch_units<kRecord, 8>(call, n_heads, stream);
}

}  // namespace

void score_records(const ScoreCall& call, Stream stream) {
  if (call.record_type == KvType::kF16) return launch_type<KvType::kF16>(call, stream);
  launch_type<KvType::kF32>(call, stream);
}

}  // namespace kvasir::cuda
