// The kernel of prefill attention over panels, for any PanelShape S. For the file that launches it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/prefill_kernel.h"
#include "kernels/cuda/prefill_panel.h"

namespace kvasir::cuda {

// What rows see of a tile's keys.
enum class TileView : uint32_t { kNothing, kSome, kAll };

// Shared memory of a block. Warp w of those that bring fills K (w < kStages) or V of stage
// w % kStages.
template <class S>
struct PanelMemory {
  Shared<uint16_t> q, k, v;     // [kRows]; [kStages][kKeys]: rows by S::place()
  Shared<uint64_t> rows;        // [kWarps][kKeys]: where K or V of each key lies
  Shared<uint32_t> types;       // [kWarps][kKeys]; 0: no row of the block sees it
  Shared<uint32_t> pos;         // [kStages][kKeys]
  Shared<uint64_t> items;       // [kStages][kKeys]
  Shared<uint32_t> view;        // [kStages] TileView
  Shared<TileRows> block;       // [1]: in registers it would take forty of each thread
  Shared<Barrier> full, empty;  // [kWarps]: the tile is there; nobody reads it any more

  KVASIR_DEVICE void take(SharedMemory& shared) {
    q = shared.take_panels(S::kQueryElements / kPanelElements);
    k = shared.take_panels(S::kStages * S::kTileElements / kPanelElements);
    v = shared.take_panels(S::kStages * S::kTileElements / kPanelElements);
    rows = shared.take<uint64_t>(kWarps * S::kKeys);
    types = shared.take<uint32_t>(kWarps * S::kKeys);
    pos = shared.take<uint32_t>(S::kStages * S::kKeys);
    items = shared.take<uint64_t>(S::kStages * S::kKeys);
    view = shared.take<uint32_t>(S::kStages);
    block = shared.take<TileRows>(1);
    full = shared.take<Barrier>(kWarps);
    empty = shared.take<Barrier>(kWarps);
  }
  static uint32_t bytes() {
    SharedSize size;
    size.add_panels(S::kQueryElements / kPanelElements);
    size.add_panels(S::kStages * S::kTileElements / kPanelElements);
    size.add_panels(S::kStages * S::kTileElements / kPanelElements);
    size.add<uint64_t>(kWarps * S::kKeys);
    size.add<uint32_t>(kWarps * S::kKeys);
    size.add<uint32_t>(S::kStages * S::kKeys);
    size.add<uint64_t>(S::kStages * S::kKeys);
    size.add<uint32_t>(S::kStages);
    size.add<TileRows>(1);
    size.add<Barrier>(kWarps);
    size.add<Barrier>(kWarps);
    return size.bytes;
  }
  KVASIR_DEVICE TileRows block_rows() const { return read_as<TileRows>(block); }
  // Of the block's keys: tile i passes through stage i % kStages.
  KVASIR_DEVICE uint64_t n_tiles() const {
    const AttentionRange range = block_rows().range;
    return (range.slot_end - range.slot_begin + S::kKeys - 1) / S::kKeys;
  }
  // Of one thread, before a barrier of the block.
  KVASIR_DEVICE void init_barriers() const {
    for (uint32_t i = 0; i < kWarps; ++i) {
      init_barrier(full + i, kWarpLanes);
      init_barrier(empty + i, S::kMultiplying);
    }
  }
};

// ---- the warps that bring K and V ----

// A lane's keys of a tile: kWarpLanes * r + lane.
template <class S>
struct KeysOfLane {
  uint64_t row[S::kListWarps];  // of K or V
  uint64_t item[S::kListWarps];
  uint32_t types[S::kListWarps];  // 0: no row of the block sees it
  uint32_t pos[S::kListWarps];
  TileView view;  // of the tile, of all lanes

  KVASIR_DEVICE void find(const AttentionCall& call, const TileRows& rows, uint64_t tile,
                          bool is_value) {
    bool is_seen = false, is_unseen = false;
    const uint64_t first = rows.range.slot_begin + tile * S::kKeys + thread_x() % kWarpLanes;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < S::kListWarps; ++r) {
      const KeySlot key = key_of_slot(call, rows.part, rows.range, first + kWarpLanes * r);
      if (!rows.all_see(key)) is_unseen = true;
      const bool may_see = rows.may_see(key);
      if (may_see) is_seen = true;
      row[r] = is_value ? key.v : key.k;
      item[r] = key.item;
      types[r] = may_see ? key.types : 0;
      pos[r] = key.pos;
    }
    const uint32_t seen = ballot(kAllLanes, is_seen), unseen = ballot(kAllLanes, is_unseen);
    view = seen == 0 ? TileView::kNothing : unseen == 0 ? TileView::kAll : TileView::kSome;
  }
};

// The listed rows of a tile to their places, by one warp.
template <class S>
KVASIR_DEVICE void bring_rows(Shared<const uint64_t> rows, Shared<const uint32_t> types,
                              bool is_value, Shared<uint16_t> to) {
  constexpr uint32_t kChunks = S::kDim / kChunk, kKeysAtOnce = kWarpLanes / kChunks, kAtOnce = 8;
  const uint32_t lane = thread_x() % kWarpLanes, chunk = lane % kChunks;
  for (uint32_t first = lane / kChunks; first < S::kKeys; first += kAtOnce * kKeysAtOnce) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t key = first + i * kKeysAtOnce, both = types[key];
      bring_chunk<S>(to + S::place(key, chunk * kChunk), is_value ? both >> 8 : both & 0xffu,
                     rows[key], chunk, S::kDim);
    }
  }
}

// The keys of a tile for the warp that brings it, and of K for those that multiply.
template <class S>
KVASIR_DEVICE void list_keys(const KeysOfLane<S>& keys, bool is_value, const PanelMemory<S>& memory,
                             uint32_t warp) {
  const uint32_t lane = thread_x() % kWarpLanes, stage = warp % S::kStages;
  KVASIR_UNROLL
  for (uint32_t r = 0; r < S::kListWarps; ++r) {
    const uint32_t i = kWarpLanes * r + lane;
    memory.rows[warp * S::kKeys + i] = keys.row[r];
    memory.types[warp * S::kKeys + i] = keys.types[r];
    if (is_value) continue;
    memory.pos[stage * S::kKeys + i] = keys.pos[r];
    memory.items[stage * S::kKeys + i] = keys.item[r];
  }
}

// A tile that lies in one block of tokens and that all rows see whole, most of a long prompt: its
// rows are found at once, and nothing but them is read of it.
template <class S>
struct WholeTile {
  uint64_t row = 0, stride = 0;  // of K or V; bytes

  KVASIR_DEVICE bool find(const AttentionCall& call, const TileRows& rows, uint64_t tile,
                          bool is_value) {
    const uint32_t size = call.shape.block_size;
    if (rows.part.by_token || size % S::kKeys != 0) return false;
    if (!LogitScale(call.shape, rows.part).is_plain) return false;  // logits are found key by key
    const uint64_t slot = rows.range.slot_begin + tile * S::kKeys;
    const KeySlot first = key_of_slot(call, rows.part, rows.range, slot);
    const KeySlot last = key_of_slot(call, rows.part, rows.range, slot + (S::kKeys - 1));
    if (!first.is_in_order || !rows.all_see(first) || !rows.all_see(last)) return false;
    row = is_value ? first.v : first.k;
    stride = ((is_value ? last.v : last.k) - row) / (S::kKeys - 1);
    return (row | stride) % sizeof(Bytes16) == 0;
  }
  KVASIR_DEVICE void bring(Shared<uint16_t> to) const {
    constexpr uint32_t kChunks = S::kDim / kChunk, kKeysAtOnce = kWarpLanes / kChunks;
    const uint32_t lane = thread_x() % kWarpLanes, chunk = lane % kChunks;
    uint64_t at = row + stride * (lane / kChunks) + uint64_t{2} * kChunk * chunk;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < S::kKeys / kKeysAtOnce; ++i) {
      copy_ahead(to + S::place(i * kKeysAtOnce + lane / kChunks, chunk * kChunk), at, true);
      at += stride * kKeysAtOnce;
    }
  }
};

// Where a tile comes from: whole, or key by key.
template <class S>
struct TileSource {
  bool is_whole;
  WholeTile<S> whole;
  KeysOfLane<S> keys;  // where it is not whole

  KVASIR_DEVICE void find(const AttentionCall& call, const PanelMemory<S>& memory, uint64_t tile,
                          bool is_value) {
    const TileRows rows = memory.block_rows();
    is_whole = whole.find(call, rows, tile, is_value);
    if (!is_whole) keys.find(call, rows, tile, is_value);
  }
  KVASIR_DEVICE TileView view() const { return is_whole ? TileView::kAll : keys.view; }
};

// Every kStages-th tile, K or V. Tiles that no row sees come as K without rows, so that all know of
// them, and as V not at all.
template <class S>
KVASIR_DEVICE void bring_tiles(const AttentionCall& call, const PanelMemory<S>& memory) {
  const uint32_t warp = thread_x() / kWarpLanes % kWarps, lane = thread_x() % kWarpLanes;
  const uint32_t stage = warp % S::kStages;
  const bool is_value = warp >= S::kStages;
  const Shared<uint16_t> to = (is_value ? memory.v : memory.k) + stage * S::kTileElements;
  const uint64_t n_tiles = memory.n_tiles();
  uint32_t turn = 0;
  TileSource<S> from;
  if (stage < n_tiles) from.find(call, memory, stage, is_value);
  for (uint64_t tile = stage; tile < n_tiles; tile += S::kStages) {
    const bool is_brought = !is_value || from.view() != TileView::kNothing;
    if (is_brought) {
      wait_for_phase(memory.empty + warp, (turn + 1) % 2);
      ++turn;
      if (!is_value && lane == 0) memory.view[stage] = static_cast<uint32_t>(from.view());
      if (from.is_whole) {
        from.whole.bring(to);
      } else {
        list_keys(from.keys, is_value, memory, warp);
        warp_sync();
        if (from.view() != TileView::kNothing)
          bring_rows<S>(memory.rows + warp * S::kKeys, memory.types + warp * S::kKeys, is_value,
                        to);
      }
      commit_copies();
    }
    // Where the next one lies is found while this one comes.
    if (tile + S::kStages < n_tiles) from.find(call, memory, tile + S::kStages, is_value);
    if (!is_brought) continue;
    wait_for_copies<0>();
    fence_async();
    arrive(memory.full + warp);
  }
}

// ---- the threads that multiply ----

// What a thread that multiplies knows of the tiles that pass through shared memory.
template <class S>
struct PanelReader {
  PanelMemory<S> memory;
  uint64_t n_tiles;
  uint32_t value_turns = 0;  // bit s: parity of how often V of stage s was waited for

  KVASIR_DEVICE static uint32_t stage(uint64_t tile) {
    return static_cast<uint32_t>(tile % S::kStages);
  }
  // The first tile from `tile` on that some row sees, whose keys are there then; n_tiles: none.
  KVASIR_DEVICE uint64_t wait_for_keys(uint64_t tile) const {
    for (; tile < n_tiles; ++tile) {
      wait_for_phase(memory.full + stage(tile), static_cast<uint32_t>(tile / S::kStages % 2));
      if (view(tile) != TileView::kNothing) break;
      leave_keys(tile);
    }
    return tile;
  }
  KVASIR_DEVICE void wait_for_values(uint64_t tile) {
    const uint32_t s = stage(tile);
    wait_for_phase(memory.full + (S::kStages + s), value_turns >> s & 1u);
    value_turns ^= 1u << s;
  }
  KVASIR_DEVICE TileView view(uint64_t tile) const {
    const uint32_t view = memory.view[stage(tile)];
    return static_cast<TileView>(view);
  }
  KVASIR_DEVICE Shared<const uint16_t> keys(uint64_t tile) const {
    return memory.k + stage(tile) * S::kTileElements;
  }
  KVASIR_DEVICE Shared<const uint16_t> values(uint64_t tile) const {
    return memory.v + stage(tile) * S::kTileElements;
  }
  KVASIR_DEVICE KeyList<S> list(uint64_t tile) const {
    const uint32_t first = stage(tile) * S::kKeys;
    return {{}, memory.items + first, memory.types + first, memory.pos + first, {}, {}};
  }
  KVASIR_DEVICE void leave_keys(uint64_t tile) const { arrive(memory.empty + stage(tile)); }
  KVASIR_DEVICE void leave_values(uint64_t tile) const {
    arrive(memory.empty + (S::kStages + stage(tile)));
  }
};

// 64 rows of the block. While the values of a tile are multiplied, and the keys of the next, the
// next one's weights are found as soon as its products are there.
template <class S>
KVASIR_DEVICE void multiply_tiles(const AttentionCall& call, PanelReader<S> reader,
                                  RowState<S>& state) {
  const LogitScale logits(call.shape, reader.memory.block_rows().part);
  const float scale = logits.scale();
  const Shared<const uint16_t> q = reader.memory.q + thread_x() / kThreads * kPanelElements;
  float x[S::kKeys / 8][4] = {}, keep[2];
  uint32_t weights[S::kKeys / 16][4];
  const auto weigh = [&](uint64_t tile) {
    if (!logits.is_plain || reader.view(tile) != TileView::kAll)
      state.find_logits(call.shape, reader.memory.block_rows(), reader.list(tile), logits.is_plain,
                        x);
    reader.leave_keys(tile);
    state.weigh(scale, x, keep);
  };
  uint64_t tile = reader.wait_for_keys(0);
  if (tile == reader.n_tiles) return;
  start_query_products<S>(q, reader.keys(tile), x);
  wait_for_products<0>(x);
  weigh(tile);
  state.rescale(keep);
  pack_weights<S>(x, weights);
  for (;;) {
    const uint64_t next = reader.wait_for_keys(tile + 1);
    if (next == reader.n_tiles) break;
    start_query_products<S>(q, reader.keys(next), x);
    reader.wait_for_values(tile);
    start_value_products<S>(weights, reader.values(tile), state.o);
    wait_for_products<1>(x);
    weigh(next);
    wait_for_products<0>(state.o, weights);
    reader.leave_values(tile);
    state.rescale(keep);
    pack_weights<S>(x, weights);
    tile = next;
  }
  reader.wait_for_values(tile);
  start_value_products<S>(weights, reader.values(tile), state.o);
  wait_for_products<0>(state.o, weights);
}

// ---- the kernel ----

template <class S>
KVASIR_KERNEL void KVASIR_BOUNDS(S::kBlockThreads) attend_panels(const AttentionCall call) {
  SharedMemory shared;
  PanelMemory<S> memory;
  memory.take(shared);
  {
    TileRows rows;
    rows.load<S::kRows>(call);
    if (rows.n_queries == 0) return;
    if (thread_x() == 0) {
      memory.init_barriers();
      write_as(memory.block, rows);
    }
    load_queries<S>(call.shape, rows, memory.q);
  }
  fence_async();
  block_sync();
  if (thread_x() >= S::kMultiplying) {
    leave_registers<104>();
    bring_tiles<S>(call, memory);
    return;
  }
  take_registers<200>();
  RowState<S> state;
  state.begin(call, memory.block_rows());
  multiply_tiles<S>(call, PanelReader<S>{memory, memory.n_tiles()}, state);
  warp_sync();  // lanes have read of the state what others write now
  state.finish(call, memory.block_rows());
}

template <class S>
void launch_panels(const AttentionCall& call, Stream stream) {
  launch(attend_panels<S>, prefill_shape(call, S::kBlockThreads, PanelMemory<S>::bytes()), stream,
         call);
}

}  // namespace kvasir::cuda
