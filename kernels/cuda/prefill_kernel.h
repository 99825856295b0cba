// Prefill attention: the rows of a block of threads, their softmax, and the kernel whose products
// are made by warps, for tiles of any PrefillShape S. For the files that launch it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_tile.h"

namespace kvasir::cuda {

// What a block attends: its rows, (query, head of the group) with the head fastest.
struct TileRows {
  AttentionRange range;
  AttentionPart part;
  uint32_t first_query, n_queries;  // of the part
  uint32_t first_head, n_heads;     // of the group
  uint32_t first_pos, last_pos;     // smallest and largest position of the queries

  // At most kRows of them: 64, or a multiple, which takes the queries of as many tiles. Then a tile
  // whose queries the block of an earlier one takes has none.
  template <uint32_t kRows>
  KVASIR_DEVICE void load(const AttentionCall& call) {
    const auto tile = load_at<PrefillTile>(call.tiles + sizeof(PrefillTile) * block_x());
    range = load_at<AttentionRange>(call.ranges + sizeof(AttentionRange) * tile.range);
    part = load_at<AttentionPart>(call.parts + sizeof(AttentionPart) * range.part);
    const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
    const uint32_t heads = group < kPrefillRows ? group : kPrefillRows;
    first_head = block_y() * heads;
    n_heads = group - first_head < heads ? group - first_head : heads;
    first_query = range.q_begin + tile.first_query;
    const uint32_t left = range.n_q - tile.first_query;
    const uint32_t most = kRows / kPrefillRows * (kPrefillRows / heads);
    n_queries = left < most ? left : most;
    if constexpr (kRows != kPrefillRows) {
      if (tile.first_query % most != 0) n_queries = 0;
    }
    find_positions();
  }
  KVASIR_DEVICE uint32_t n() const { return n_queries * n_heads; }
  KVASIR_DEVICE uint32_t query(uint32_t row) const { return first_query + row / n_heads; }
  KVASIR_DEVICE uint32_t head(uint32_t row) const { return first_head + row % n_heads; }
  KVASIR_DEVICE uint32_t pos(uint32_t row) const {
    return load_at<uint32_t>(part.q_pos + uint64_t{4} * query(row));
  }
  // Whether some row may see the key; false only where none does.
  KVASIR_DEVICE bool may_see(const KeySlot& key) const {
    if (key.types == 0) return false;
    const int64_t farthest = int64_t{last_pos} - int64_t{key.pos};
    const int64_t nearest = int64_t{first_pos} - int64_t{key.pos};
    if (farthest < 0 || farthest < int64_t{part.dist_min}) return false;
    return part.dist_max == UINT32_MAX || nearest < int64_t{part.dist_max};
  }
  // Whether every row sees the key; true only where all do.
  KVASIR_DEVICE bool all_see(const KeySlot& key) const {
    return sees(part, first_pos, key) && sees(part, last_pos, key);
  }

 private:
  KVASIR_DEVICE void find_positions() {
    first_pos = UINT32_MAX;
    last_pos = 0;
    for (uint32_t i = thread_x() % kWarpLanes; i < n_queries; i += kWarpLanes) {
      const auto at = load_at<uint32_t>(part.q_pos + uint64_t{4} * (first_query + i));
      first_pos = at < first_pos ? at : first_pos;
      last_pos = at > last_pos ? at : last_pos;
    }
    for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
      const uint32_t low = shuffle_xor(kAllLanes, first_pos, lanes);
      const uint32_t high = shuffle_xor(kAllLanes, last_pos, lanes);
      first_pos = low < first_pos ? low : first_pos;
      last_pos = high > last_pos ? high : last_pos;
    }
  }
};

// A query of f16 that does not fit becomes NaN, which marks its row.
KVASIR_DEVICE float fit_f16(float x) {
  return fabsf(x) <= 65504.0f ? x : bits_to_float(0x7fc00000u);
}

template <class S>
KVASIR_DEVICE void load_queries(const AttentionShape& shape, const TileRows& rows,
                                Shared<typename S::Element> q) {
  const uint32_t pairs = (shape.head_dim + 15) / 16 * 8;
  const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
  for (uint32_t i = thread_x(); i < S::kRows * pairs; i += threads_x()) {
    const uint32_t row = i / pairs, d = i % pairs * 2;
    float x[2] = {0.0f, 0.0f};
    if (row < rows.n()) {
      const uint64_t head = uint64_t{rows.range.kv_head} * group + rows.head(row);
      const uint64_t at = rows.query(row) * rows.part.q_stride + head * shape.head_dim + d;
      KVASIR_UNROLL
      for (uint32_t e = 0; e < 2; ++e)
        if (d + e < shape.head_dim) x[e] = load_at<float>(rows.part.q + 4 * (at + e));
    }
    const Shared<typename S::Element> to = q + S::place(row, d);
    if constexpr (S::kProduct == KvType::kF16) {
      write_as(to, pack_f16(fit_f16(x[0]), fit_f16(x[1])));
    } else if constexpr (S::kProduct == KvType::kBF16) {
      write_as(to, pack_bf16(x[0], x[1]));
    } else {
      to[0] = x[0];
      to[1] = x[1];
    }
  }
}

// Which keys the tile holds, and which of them the rows may see.
template <class S>
KVASIR_DEVICE void list_keys(const AttentionCall& call, const TileRows& rows, uint64_t tile,
                             const KeyList<S>& list) {
  const uint32_t warp = thread_x() / kWarpLanes, i = thread_x();
  if (warp >= S::kListWarps) return;
  bool is_seen = false, is_unseen = false;
  if (i < S::kKeys) {
    const KeySlot key =
        key_of_slot(call, rows.part, rows.range, rows.range.slot_begin + tile * S::kKeys + i);
    is_seen = rows.may_see(key);
    is_unseen = !rows.all_see(key);
    write_as(list.rows + i, KeyRow{key.k, key.v});
    list.items[i] = key.item;
    list.types[i] = is_seen ? key.types : 0;
    list.pos[i] = key.pos;
  }
  const uint32_t seen = ballot(kAllLanes, is_seen), unseen = ballot(kAllLanes, is_unseen);
  if (i % kWarpLanes != 0) return;
  list.seen[warp] = seen;
  list.unseen[warp] = unseen;
}

// Whether one of a tile's warps of keys has a bit.
template <class S>
KVASIR_DEVICE bool has_some(Shared<const uint32_t> bits) {
  uint32_t some = 0;
  KVASIR_UNROLL
  for (uint32_t w = 0; w < S::kListWarps; ++w) some |= bits[w];
  return some != 0;
}

// Logits are x unit(), and weights 2^(x scale() - high): powers of 2 take one instruction. x are
// the products where a logit is nothing but a product's multiple, else the logits.
struct LogitScale {
  bool is_plain;
  float unit;

  KVASIR_DEVICE LogitScale(const AttentionShape& shape, const AttentionPart& part)
      : is_plain(shape.softcap == 0.0f && !part.log_weight && shape.softmax_scale > 0.0f),
        unit(is_plain ? shape.softmax_scale : 1.0f) {}
  KVASIR_DEVICE float scale() const { return round_product(unit, 1.44269504f); }
};

// Of the lane's rows, g and g + 8 of the warp's.
template <class S>
struct RowState {
  float o[S::kDim / 8][4];
  float high[2];  // largest logit so far, in base 2: times log2(e)
  float sum[2];   // of this lane's keys: 2^(logit - high)
  uint32_t row[2], pos[2];

  KVASIR_DEVICE void begin(const AttentionCall& call, const TileRows& rows) {
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      row[r] = thread_x() / kWarpLanes * kWarpRows + thread_x() % kWarpLanes / 4 + 8 * r;
      pos[r] = row[r] < rows.n() ? rows.pos(row[r]) : 0;
      high[r] = minus_infinity();
      sum[r] = 0.0f;
    }
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kDim / 8; ++n) {
      KVASIR_UNROLL
      for (uint32_t i = 0; i < 4; ++i) o[n][i] = 0.0f;
    }
    if (rows.range.slot_begin != 0) move_state<true>(call, rows);
  }

  // From the launch before, or for the next one: sums as they are.
  template <bool kIsLoad>
  KVASIR_DEVICE void move_state(const AttentionCall& call, const TileRows& rows) {
    const uint32_t t = thread_x() % 4;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      if (row[r] >= rows.n()) continue;
      const uint64_t at = place(call, rows, r);
      const Global<float> state = global<float>(call.row_state + 4 * kRowState * at);
      move<kIsLoad>(state + (1 + t), sum[r]);
      if (kIsLoad || t == 0) move<kIsLoad>(state, high[r]);
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kDim / 8; ++n) {
        KVASIR_UNROLL
        for (uint32_t e = 0; e < 2; ++e) {
          const uint32_t d = 8 * n + 2 * t + e;
          if (d < call.shape.v_dim)
            move<kIsLoad>(global<float>(call.partial_o + 4 * (at * call.shape.v_dim + d)),
                          o[n][2 * r + e]);
        }
      }
    }
  }
  template <bool kIsLoad>
  KVASIR_DEVICE static void move(Global<float> at, float& value) {
    if constexpr (kIsLoad)
      value = at[0];
    else
      at[0] = value;
  }
  // Of lane row r among partial results.
  KVASIR_DEVICE uint64_t place(const AttentionCall& call, const TileRows& rows, uint32_t r) const {
    const uint64_t unit = rows.range.first_unit + (rows.query(row[r]) - rows.range.q_begin);
    return unit * (call.shape.n_q_heads / call.shape.n_kv_heads) + rows.head(row[r]);
  }

  // Which of the tile's keys the lane's rows see: bit 2 n + e of seen[r] for x[n][2 r + e]. A loop,
  // so that no key waits in a register beside the products.
  KVASIR_DEVICE void find_seen(const TileRows& rows, const KeyList<S>& list,
                               uint32_t (&seen)[2]) const {
    static_assert(S::kKeys / 4 <= 32);
    seen[0] = seen[1] = 0;
    KVASIR_NO_UNROLL
    for (uint32_t i = 0; i < S::kKeys / 4; ++i) {
      const uint32_t at = i / 2 * 8 + thread_x() % 4 * 2 + i % 2;
      KeySlot key;
      key.types = list.types[at];
      key.pos = list.pos[at];
      KVASIR_UNROLL
      for (uint32_t r = 0; r < 2; ++r)
        if (row[r] < rows.n() && sees(rows.part, pos[r], key)) seen[r] |= 1u << i;
    }
  }

  // Of keys that the row does not see, products become -inf; where they are not plain the others
  // become logits.
  KVASIR_DEVICE void find_logits(const AttentionShape& shape, const TileRows& rows,
                                 const KeyList<S>& list, bool is_plain,
                                 float (&x)[S::kKeys / 8][4]) const {
    uint32_t seen[2];
    find_seen(rows, list, seen);
    if (!is_plain) weigh_logits(shape, rows, list, x);
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
      KVASIR_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        if (!(seen[i / 2] >> (2 * n + i % 2) & 1u)) x[n][i] = minus_infinity();
    }
  }

  KVASIR_DEVICE void weigh_logits(const AttentionShape& shape, const TileRows& rows,
                                  const KeyList<S>& list, float (&x)[S::kKeys / 8][4]) const {
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
      KVASIR_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t at = 8 * n + 2 * (thread_x() % 4) + i % 2;
        if (row[i / 2] >= rows.n() || list.types[at] == 0) continue;
        const uint64_t item = list.items[at];
        x[n][i] = logit_of(shape, rows.part, item, rows.head(row[i / 2]), x[n][i]);
      }
    }
  }

  // x become weights under the new high, 0 where they are -inf. keep: what the sums so far, of
  // which o is another's business, are to be multiplied by.
  KVASIR_DEVICE void weigh(float scale, float (&x)[S::kKeys / 8][4], float (&keep)[2]) {
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      float most = x[0][2 * r];
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
        KVASIR_UNROLL
        for (uint32_t e = 0; e < 2; ++e) most = fmaxf(most, x[n][2 * r + e]);
      }
      most = fmaxf(most, shuffle_xor(kAllLanes, most, 1));
      most = fmaxf(most, shuffle_xor(kAllLanes, most, 2));
      const float highest = fmaxf(high[r], round_product(scale, most));
      const float base = highest == minus_infinity() ? 0.0f : highest;  // nothing seen so far
      keep[r] = power_of_2(high[r] - base);
      high[r] = highest;
      sum[r] *= keep[r];
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
        KVASIR_UNROLL
        for (uint32_t e = 0; e < 2; ++e) {
          float& at = x[n][2 * r + e];
          at = power_of_2(fmaf(at, scale, -base));
          sum[r] += at;
        }
      }
    }
  }

  // Most tiles of a long prompt raise the high of no row.
  KVASIR_DEVICE void rescale(const float (&keep)[2]) {
    if (ballot(kAllLanes, keep[0] != 1.0f || keep[1] != 1.0f) == 0) return;
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kDim / 8; ++n) {
      KVASIR_UNROLL
      for (uint32_t i = 0; i < 4; ++i) o[n][i] *= keep[i / 2];
    }
  }

  // Products become weights, and o is what the weighted values are to be added to. Most tiles of a
  // long prompt are seen whole by all rows: then no key is compared.
  KVASIR_DEVICE void add(const AttentionShape& shape, const TileRows& rows, const KeyList<S>& list,
                         float (&x)[S::kKeys / 8][4]) {
    const LogitScale logits(shape, rows.part);
    if (!logits.is_plain || has_some<S>(list.unseen))
      find_logits(shape, rows, list, logits.is_plain, x);
    float keep[2];
    weigh(logits.scale(), x, keep);
    rescale(keep);
  }

  // Results, or where later launches have the other keys what these go on from.
  KVASIR_DEVICE void finish(const AttentionCall& call, const TileRows& rows) {
    if (rows.range.slot_end == n_slots_of(call, rows.part, rows.range))
      store(call, rows);
    else
      move_state<false>(call, rows);
  }

  // Rows of which something is not finite are marked by a lse of NaN.
  KVASIR_DEVICE void store(const AttentionCall& call, const TileRows& rows) const {
    const uint32_t v_dim = call.shape.v_dim;
    const uint32_t lane = thread_x() % kWarpLanes, t = lane % 4;
    KVASIR_UNROLL
    for (uint32_t r = 0; r < 2; ++r) {
      float total = sum[r] + shuffle_xor(kAllLanes, sum[r], 1);
      total += shuffle_xor(kAllLanes, total, 2);
      bool is_finite = total <= FLT_MAX;
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kDim / 8; ++n) {
        KVASIR_UNROLL
        for (uint32_t e = 0; e < 2; ++e) is_finite = is_finite && fabsf(o[n][2 * r + e]) <= FLT_MAX;
      }
      const uint32_t others = ballot(kAllLanes, is_finite) >> (lane - t) & 15u;
      if (row[r] >= rows.n()) continue;
      const uint64_t at = place(call, rows, r);
      const bool is_empty = total == 0.0f;
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kDim / 8; ++n) {
        KVASIR_UNROLL
        for (uint32_t e = 0; e < 2; ++e) {
          const uint32_t d = 8 * n + 2 * t + e;
          if (d < v_dim)
            global<float>(call.partial_o)[at * v_dim + d] =
                is_empty ? 0.0f : o[n][2 * r + e] / total;
        }
      }
      if (t != 0) continue;
      const float lse = is_empty ? minus_infinity() : high[r] * 0.693147181f + logf(total);
      global<float>(call.partial_lse)[at] = others == 15u ? lse : bits_to_float(0x7fc00000u);
    }
  }
};

template <class S>
KVASIR_KERNEL void KVASIR_BOUNDS(kThreads) attend_prefill(const AttentionCall call) {
  SharedMemory shared;
  PrefillMemory<S> memory;
  memory.take(shared);
  TileRows rows;
  rows.load<S::kRows>(call);
  load_queries<S>(call.shape, rows, memory.q);
  RowState<S> state;
  state.begin(call, rows);
  const uint64_t n_tiles = (rows.range.slot_end - rows.range.slot_begin + S::kKeys - 1) / S::kKeys;
  for (uint64_t i = 0; i < n_tiles + S::kAhead; ++i) {
    if (i < n_tiles) list_keys<S>(call, rows, i, memory.list(i));
    block_sync();  // the list is there, and nobody reads the tile before any more
    if (i < n_tiles && has_some<S>(memory.list(i).seen))
      bring_tile<S>(call.shape, memory.list(i), memory.k + memory.stage(i),
                    memory.v + memory.stage(i));
    commit_copies();
    if constexpr (S::kAhead != 0) {
      if (i < S::kAhead) continue;
    }
    wait_for_copies<S::kAhead>();
    block_sync();
    const uint64_t tile = i - S::kAhead;
    const KeyList<S> list = memory.list(tile);
    if (!has_some<S>(list.seen)) continue;
    float x[S::kKeys / 8][4];
    const uint32_t first = thread_x() / kWarpLanes * kWarpRows;
    query_products<S>(call.shape.head_dim, memory.q + first * S::kStride,
                      memory.k + memory.stage(tile), x);
    state.add(call.shape, rows, list, x);
    value_products<S>(call.shape.v_dim, x, memory.v + memory.stage(tile), state.o);
  }
  state.finish(call, rows);
}

// Of blocks that take a tile of queries, and all heads of the group or as many as it has rows.
inline LaunchShape prefill_shape(const AttentionCall& call, uint32_t threads,
                                 uint32_t shared_bytes) {
  const uint32_t group = call.shape.n_q_heads / call.shape.n_kv_heads;
  const uint32_t heads = prefill_heads(call.shape);
  LaunchShape shape;
  shape.blocks_x = call.n_tiles;
  shape.blocks_y = (group + heads - 1) / heads;
  shape.threads = threads;
  shape.shared_bytes = shared_bytes;
  return shape;
}

template <class S>
void launch_prefill(const AttentionCall& call, Stream stream) {
  launch(attend_prefill<S>, prefill_shape(call, kThreads, PrefillMemory<S>::bytes()), stream, call);
}

}  // namespace kvasir::cuda
