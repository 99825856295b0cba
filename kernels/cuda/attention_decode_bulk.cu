// See attention_decode_bulk.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_decode_bulk.h"

#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/decode_unit.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

// A tile of keys: this lane's, and bits of those that the query sees; none behind the last tile.
struct TileKeys {
  KeySlot key;
  bool is_seen = false;
  uint32_t seen = 0;
};

// The next tile of this warp, from `tile` on, of which the query sees something; `tile` goes behind
// it.
KVASIR_DEVICE TileKeys next_keys(const AttentionCall& call, const DecodeUnit& unit, uint32_t q_pos,
                                 uint32_t& tile) {
  TileKeys out;
  while (out.seen == 0 && tile < kTilesOfSplit) {
    const uint64_t slot = unit.first_slot + tile * kTile + thread_x() % kWarpLanes;
    out.key = key_of_slot(call, unit.part, unit.range, slot);
    out.is_seen = sees(unit.part, q_pos, out.key);
    out.seen = ballot(kAllLanes, out.is_seen);
    tile += kWarps;
  }
  return out;
}

// Rows of a tile in shared memory, one after the other; load() as in RowsInMemory.
template <KvType kType>
struct RowBuffer {
  static constexpr uint32_t kAhead = 2;  // loads: shared memory is near
  Shared<uint8_t> rows;
  Shared<Barrier> barrier;  // of what comes
  uint32_t dim;             // elements of a row, a multiple of 8
  uint32_t seen = 0;

  KVASIR_DEVICE uint32_t row_bytes() const { return 2 * dim; }
  KVASIR_DEVICE void load(KvChunk<kType>& chunk, uint32_t row, uint32_t i) const {
    if ((seen >> row & 1u) == 0 || i * kChunk >= dim) return;
    chunk.bits = read_as<Bytes16>(rows + (row * row_bytes() + i * 2 * kChunk));
  }

  // Starts to bring the rows that `seen` names; this lane's lies at `row`. The lanes have read the
  // rows before.
  KVASIR_DEVICE void bring(uint64_t row, uint32_t seen_keys) {
    seen = seen_keys;
    const uint32_t lane = thread_x() % kWarpLanes;
    const uint32_t in_bulk =
        ballot(kAllLanes, (seen >> lane & 1u) != 0 && row % sizeof(Bytes16) == 0);
    const uint64_t before = shuffle(kAllLanes, row, (lane + kWarpLanes - 1) % kWarpLanes);
    const bool follows =
        lane != 0 && (in_bulk >> (lane - 1) & 1u) != 0 && before + row_bytes() == row;
    const uint32_t firsts = ballot(kAllLanes, (in_bulk >> lane & 1u) != 0 && !follows);
    fence_async();
    if (lane == 0) expect_bytes(barrier, count_bits(in_bulk) * row_bytes());
    warp_sync();
    if (firsts >> lane & 1u) {
      // Up to the next first row, or one that does not travel in bulk.
      const uint32_t ends = (firsts | ~in_bulk) & ~((2u << lane) - 1u);
      const uint32_t end = ends == 0 ? kWarpLanes : count_bits((ends & (0u - ends)) - 1u);
      bulk_copy(rows + lane * row_bytes(), row, (end - lane) * row_bytes(), barrier);
    }
    const uint32_t others = seen & ~in_bulk;
    if (others != 0) copy_by_lanes(row, others);
  }
  // Until what bring() started is there, for all lanes.
  KVASIR_DEVICE void wait(uint32_t parity) const {
    wait_for_bytes(barrier, parity);
    warp_sync();  // what lanes have copied, too
  }

 private:
  KVASIR_DEVICE void copy_by_lanes(uint64_t row, uint32_t copied) const {
    const uint32_t lane = thread_x() % kWarpLanes, width = lanes_per_row(dim);
    const uint32_t i = lane % width;
    for (uint32_t first = 0; first < kTile; first += kWarpLanes / width) {
      const uint32_t of = first + lane / width;
      const uint64_t from = shuffle(kAllLanes, row, of);
      if ((copied >> of & 1u) == 0 || i * kChunk >= dim) continue;
      KvChunk<kType> raw;
      raw.load(from, i, dim);
      write_as(rows + (of * row_bytes() + i * 2 * kChunk), raw.bits);
    }
  }
};

// Bytes of the buffers of a block, which hold its partial sums once all keys are read.
template <uint32_t kHeads>
KVASIR_HOST_DEVICE uint32_t buffer_bytes(const AttentionShape& shape) {
  const uint32_t rows = kThreads * 2 * (shape.head_dim + shape.v_dim);
  const uint32_t sums = kThreads * kHeads * kChunk * static_cast<uint32_t>(sizeof(float));
  return rows > sums ? rows : sums;
}

template <KvType kType, uint32_t kHeads>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) attend_unit_in_bulk(const AttentionCall call) {
  const uint32_t warp = thread_x() / kWarpLanes, lane = thread_x() % kWarpLanes;
  const uint32_t head_dim = call.shape.head_dim, v_dim = call.shape.v_dim;
  SharedMemory shared;
  const Shared<uint8_t> buffers = shared.take<uint8_t>(buffer_bytes<kHeads>(call.shape));
  const Shared<Barrier> barriers = shared.take<Barrier>(2 * kWarps) + 2 * warp;
  const Shared<float> weights = shared.take<float>(kThreads * kHeads) + warp * kTile * kHeads;
  const Shared<float> highs = shared.take<float>(kWarps * kHeads);
  const Shared<float> totals = shared.take<float>(kWarps * kHeads);
  const Shared<uint8_t> mine = buffers + warp * kTile * 2 * (head_dim + v_dim);
  RowBuffer<kType> k{mine, barriers, head_dim};
  RowBuffer<kType> v{mine + kTile * 2 * head_dim, barriers + 1u, v_dim};
  if (lane == 0) {
    init_barrier(barriers, 1);
    init_barrier(barriers + 1u, 1);
    show_barriers();
  }
  warp_sync();

  DecodeUnit unit;
  unit.load(call, kHeads);
  const auto q_pos = load_at<uint32_t>(unit.part.q_pos + uint64_t{4} * unit.query);
  uint32_t tile = warp;
  TileKeys now = next_keys(call, unit, q_pos, tile);
  if (now.seen != 0) {
    k.bring(now.key.k, now.seen);
    v.bring(now.key.v, now.seen);
  }
  TileKeys next = next_keys(call, unit, q_pos, tile);
  QueryChunk<kHeads> q;
  q.load(call.shape, unit.part, unit.query, unit.range.kv_head, unit.first_head);
  Softmax<kHeads> state;
  state.clear();
  for (uint32_t parity = 0; now.seen != 0; parity ^= 1u) {
    k.wait(parity);
    dot_products<kType, kHeads>(q, head_dim, k, weights);
    warp_sync();  // the dots are there
    if (next.seen != 0) k.bring(next.key.k, next.seen);
    weigh_keys<kHeads>(call, unit.part, now.key.item, now.is_seen, unit.first_head, state, weights);
    v.wait(parity);
    add_values<kType, kHeads>(state, v_dim, v, weights);
    if (next.seen != 0) v.bring(next.key.v, next.seen);
    now = next;
    next = next_keys(call, unit, q_pos, tile);
  }
  block_sync();  // nobody reads rows any more
  store_unit<kHeads>(call, unit.unit, unit.first_head, state, cast<float>(buffers), highs, totals);
}

template <uint32_t kHeads>
uint32_t shared_bytes(const AttentionCall& call) {
  SharedSize shared;
  shared.add<uint8_t>(buffer_bytes<kHeads>(call.shape));
  shared.add<Barrier>(2 * kWarps);
  shared.add<float>(kThreads * kHeads);
  shared.add<float>(kWarps * kHeads);
  shared.add<float>(kWarps * kHeads);
  return shared.bytes;
}

template <KvType kType>
void launch_type(const AttentionCall& call, Stream stream) {
  with_unit_shape(call, [&]<uint32_t kHeads>(HeadsOfBlock<kHeads>, LaunchShape shape) {
    shape.shared_bytes = shared_bytes<kHeads>(call);
    launch(attend_unit_in_bulk<kType, kHeads>, shape, stream, call);
  });
}

}  // namespace

bool copies_in_bulk(const AttentionCall& call) {
  const bool is_half = call.type == KvType::kF16 || call.type == KvType::kBF16;
  return is_half && call.shape.head_dim % kChunk == 0 && call.shape.v_dim % kChunk == 0;
}

void attention_decode_bulk(const AttentionCall& call, Stream stream) {
  if (call.type == KvType::kF16) return launch_type<KvType::kF16>(call, stream);
  launch_type<KvType::kBF16>(call, stream);
}

}  // namespace kvasir::cuda
