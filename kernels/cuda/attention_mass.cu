// See attention_mass.h: the logits of decode attention, summed per key.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_mass.h"

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

// One warp's tile: its rows and products, in shared memory.
struct TileMemory {
  Shared<KeyRow> rows;
  Shared<uint32_t> types;
  Shared<float> dots;
};

// mass[h] of this lane's key, for kHeads heads from `first_head` on.
template <KvType kType, uint32_t kHeads>
KVASIR_DEVICE void mass_of_tile(const MassCall& call, const AttentionPart& part,
                                const AttentionRange& range, const KeySlot& key,
                                uint32_t first_head, const TileMemory& memory,
                                float (&mass)[kHeads]) {
  const AttentionShape& shape = call.attention.shape;
  const uint32_t lane = thread_x() % kWarpLanes, group = shape.n_q_heads / shape.n_kv_heads;
  KVASIR_UNROLL
  for (uint32_t h = 0; h < kHeads; ++h) mass[h] = 0.0f;
  for (uint32_t query = range.q_begin; query < range.q_begin + range.n_q; ++query) {
    const bool is_seen = sees(part, load_at<uint32_t>(part.q_pos + uint64_t{4} * query), key);
    const uint32_t seen = ballot(kAllLanes, is_seen);
    if (seen == 0) continue;
    QueryChunk<kHeads> q;
    q.load(shape, part, query, range.kv_head, first_head);
    const RowsInMemory<kType, false> keys{memory.rows, memory.types, seen, shape.head_dim};
    dot_products<kType, kHeads>(q, shape.head_dim, keys, memory.dots);
    warp_sync();
    KVASIR_UNROLL
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (!is_seen || first_head + h >= group) continue;
      const uint64_t head =
          uint64_t{query} * shape.n_q_heads + uint64_t{range.kv_head} * group + first_head + h;
      const float lse = load_at<float>(call.lse + 4 * head);
      const float logit =
          logit_of(shape, part, key.item, first_head + h, memory.dots[lane * kHeads + h]);
      if (lse != minus_infinity()) mass[h] += expf(logit - lse);
    }
    warp_sync();
  }
}

template <KvType kType, uint32_t kHeads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) mass_of_unit(const MassCall call) {
  SharedMemory shared;
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  TileMemory memory;
  memory.rows = shared.take<KeyRow>(kThreads) + warp * kTile;
  memory.types = shared.take<uint32_t>(kThreads) + warp * kTile;
  memory.dots = shared.take<float>(kThreads * kHeads) + warp * kTile * kHeads;

  const uint32_t index = range_of_unit<MassRange>(call.ranges, call.attention.n_ranges, block_x());
  const auto to = load_at<MassRange>(call.ranges + sizeof(MassRange) * index);
  const auto range =
      load_at<AttentionRange>(call.attention.ranges + sizeof(AttentionRange) * index);
  const auto part =
      load_at<AttentionPart>(call.attention.parts + sizeof(AttentionPart) * range.part);
  const uint32_t group = call.attention.shape.n_q_heads / call.attention.shape.n_kv_heads;
  const uint64_t first_slot = range.slot_begin + (block_x() - to.first_unit) * kSplitSlots;
  for (uint32_t tile = warp; tile < kTilesOfSplit; tile += kWarps) {
    const KeySlot key = key_of_slot(call.attention, part, range, first_slot + tile * kTile + lane);
    const uint32_t there = ballot(kAllLanes, key.types != 0);
    if (there == 0) continue;
    write_as(memory.rows + lane, KeyRow{key.k, key.v});
    memory.types[lane] = key.types;
    warp_sync();
    const uint64_t item = key.item - range.item_begin;
    const uint64_t index_of_key = key.types == 0 ? 0
                                  : to.item_keys
                                      ? load_at<uint64_t>(to.item_keys + 8 * item) + key.token
                                      : item;
    const Global<float> value =
        global<float>(call.value + 4 * (to.first_key + index_of_key) * call.width);
    float total = 0.0f;
    for (uint32_t first_head = 0; first_head < group; first_head += kHeads) {
      float mass[kHeads];
      mass_of_tile<kType, kHeads>(call, part, range, key, first_head, memory, mass);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) {
        if (first_head + h >= group) continue;
        total += mass[h];
        if (key.types != 0 && call.width != 1) value[first_head + h] = mass[h];
      }
    }
    if (key.types != 0 && call.width == 1) value[0] = total;
    warp_sync();  // the next tile writes what this one reads
  }
}

template <KvType kType, uint32_t kHeads>
void launch_units(const MassCall& call, Stream stream) {
  LaunchShape shape;
  shape.blocks_x = static_cast<uint32_t>(call.n_units);
  shape.threads = kThreads;
  SharedSize shared;
  shared.add<KeyRow>(kThreads);
  shared.add<uint32_t>(kThreads);
  shared.add<float>(kThreads * kHeads);
  shape.shared_bytes = shared.bytes;
  launch(mass_of_unit<kType, kHeads>, shape, stream, call);
}

template <KvType kType>
void launch_type(const MassCall& call, Stream stream) {
  const AttentionShape& shape = call.attention.shape;
  if (shape.n_q_heads == shape.n_kv_heads) return launch_units<kType, 1>(call, stream);
  launch_units<kType, 8>(call, stream);
}

}  // namespace

void attention_mass(const MassCall& call, Stream stream) {
  if (call.attention.type == KvType::kF16) return launch_type<KvType::kF16>(call, stream);
  if (call.attention.type == KvType::kBF16) return launch_type<KvType::kBF16>(call, stream);
  launch_type<KvType::kMixed>(call, stream);
}

}  // namespace kvasir::cuda
