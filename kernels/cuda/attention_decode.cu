// See attention_decode.h: partial results per split of the keys.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_decode.h"

#include "kernels/cuda/attention_decode_tensor.h"
#include "kernels/cuda/decode_unit.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

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
    const RowsInMemory<kType, false> k{rows, types, seen, call.shape.head_dim};
    dot_products<kType, kHeads>(q, call.shape.head_dim, k, weights);
    warp_sync();
    weigh_keys<kHeads>(call, part, key.item, is_seen, first_head, state, weights);
    warp_sync();
    const RowsInMemory<kType, true> v{rows, types, seen, call.shape.v_dim};
    add_values<kType, kHeads>(state, call.shape.v_dim, v, weights);
    warp_sync();  // the next tile writes what this one reads
  }
  store_unit<kHeads>(call, unit, first_head, state, sums, highs, totals);
}

template <KvType kType, uint32_t kHeads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) attend_unit(const AttentionCall call) {
  DecodeUnit unit;
  unit.load(call, kHeads);
  attend_tiles<kType, kHeads>(call, unit.range, unit.part, unit.unit, unit.query, unit.first_head,
                              unit.first_slot, kTilesOfSplit);
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

template <KvType kType>
void launch_type(const AttentionCall& call, Stream stream) {
  with_unit_shape(call, [&]<uint32_t kHeads>(HeadsOfBlock<kHeads>, LaunchShape shape) {
    shape.shared_bytes = shared_bytes<kHeads>();
    launch(attend_unit<kType, kHeads>, shape, stream, call);
  });
}

}  // namespace

void attention_decode(const AttentionCall& call, Stream stream) {
  if (attends_in_products(call)) return attention_decode_tensor(call, stream);
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
