// A warp's tile of 32 keys: where each key lies, who sees it, and its logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/cuda/kv_chunk.h"

namespace kvasir::cuda {

inline constexpr uint32_t kTile = kWarpLanes;
inline constexpr uint32_t kWarps = 4, kThreads = kWarps * kWarpLanes;
inline constexpr uint32_t kTilesOfSplit = kSplitSlots / kTile;
// Loads of a lane from global memory that are on their way at once. A type per row keeps f32, which
// take more registers.
template <KvType kType>
inline constexpr uint32_t kLoadsAhead = kType == KvType::kMixed ? 2 : 4;

// The key of one slot. types: of K, and of V above; 0: nothing there.
struct KeySlot {
  uint64_t k = 0, v = 0;
  uint64_t item = 0;  // of the part
  uint32_t types = 0, token = 0, pos = 0;
  bool is_in_order = false;  // the block's tokens have positions one behind the other
};
// What the lanes of a warp read of each other's keys.
struct alignas(16) KeyRow {
  uint64_t k, v;
};

KVASIR_DEVICE float minus_infinity() { return -INFINITY; }

KVASIR_DEVICE uint64_t n_slots_of(const AttentionCall& call, const AttentionPart& part,
                                  const AttentionRange& range) {
  return (range.item_end - range.item_begin) * (part.by_token ? 1 : call.shape.block_size);
}

// a / b. Divisions of 64 bits are calls of a hundred instructions, and few numbers need them.
KVASIR_DEVICE uint64_t quotient(uint64_t a, uint32_t b) {
  return a <= UINT32_MAX ? static_cast<uint32_t>(a) / b : a / b;
}

KVASIR_DEVICE KeySlot key_of_slot(const AttentionCall& call, const AttentionPart& part,
                                  const AttentionRange& range, uint64_t slot) {
  KeySlot out;
  const uint32_t size = call.shape.block_size;
  const uint64_t index_of_slot = part.by_token ? slot : quotient(slot, size);
  out.item = range.item_begin + index_of_slot;
  if (out.item >= range.item_end) return out;
  const uint32_t index =
      part.items ? load_at<uint32_t>(part.items + 4 * out.item) : static_cast<uint32_t>(out.item);
  const uint32_t ordinal = part.by_token ? index / size : index;
  out.token =
      part.by_token ? index - ordinal * size : static_cast<uint32_t>(slot - index_of_slot * size);
  const auto block = load_at<KvBlock>(part.blocks + uint64_t{sizeof(KvBlock)} * ordinal);
  if (out.token >= block.n_tokens) return out;
  const auto format = load_at<KvFormat>(call.formats + sizeof(KvFormat) * block.format);
  const uint64_t head = block.is_one_head ? 0 : range.kv_head;
  out.k = block.k + head * format.k_head_stride + out.token * format.k_token_stride;
  out.v = block.v + head * format.v_head_stride + out.token * format.v_token_stride;
  out.types = static_cast<uint32_t>(format.k_type) | static_cast<uint32_t>(format.v_type) << 8;
  out.is_in_order = block.pos == 0;
  out.pos = block.pos ? load_at<uint32_t>(block.pos + uint64_t{4} * out.token)
                      : block.first_pos + out.token;
  return out;
}

KVASIR_DEVICE bool sees(const AttentionPart& part, uint32_t q_pos, const KeySlot& key) {
  if (key.types == 0) return false;
  const int64_t distance = int64_t{q_pos} - int64_t{key.pos};
  if (distance < 0 || distance < int64_t{part.dist_min}) return false;
  return part.dist_max == UINT32_MAX || distance < int64_t{part.dist_max};
}

// Lanes that share a row of `dim` elements, 8 each: a power of two, at least 8.
KVASIR_DEVICE uint32_t lanes_per_row(uint32_t dim) {
  return dim <= 8 * kChunk ? 8 : dim <= 16 * kChunk ? 16 : 32;
}

// A chunk of row `k` or `v`, or zeros where nobody sees it.
template <KvType kType>
KVASIR_DEVICE void load_chunk(KvChunk<kType>& chunk, uint32_t type, uint64_t row, uint32_t i,
                              uint32_t dim) {
  if (type == 0) return;
  if constexpr (kType == KvType::kMixed) {
    chunk.load(static_cast<KvType>(type), row, i, dim);
  } else {
    chunk.load(row, i, dim);
  }
}

// Sums of kN numbers over `width` neighbouring lanes, width >= kN a power of two: lane i of them
// returns the sum of number i / (width / kN). Half the numbers travel at each step: kN - 1 +
// log2(width / kN) exchanges instead of kN * log2(width).
template <uint32_t kN>
KVASIR_DEVICE float sum_over_lanes(const float (&values)[kN], uint32_t width) {
  if constexpr (kN == 1) {
    float sum = values[0];
    for (uint32_t lanes = width / 2; lanes > 0; lanes /= 2)
      sum += shuffle_xor(kAllLanes, sum, lanes);
    return sum;
  } else {
    const bool is_upper = thread_x() & (width / 2);
    float kept[kN / 2];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kN / 2; ++i) {
      const float give = is_upper ? values[i] : values[i + kN / 2];
      kept[i] =
          (is_upper ? values[i + kN / 2] : values[i]) + shuffle_xor(kAllLanes, give, width / 2);
    }
    return sum_over_lanes<kN / 2>(kept, width / 2);
  }
}

// Queries of kHeads heads from `first_head` of the group on: this lane's chunk of each, in
// registers. Heads that the group does not have are 0.
template <uint32_t kHeads>
struct QueryChunk {
  float q[kHeads][kChunk];

  KVASIR_DEVICE void load(const AttentionShape& shape, const AttentionPart& part, uint32_t query,
                          uint32_t kv_head, uint32_t first_head) {
    const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
    const uint32_t begin = thread_x() % lanes_per_row(shape.head_dim) * kChunk;
    KVASIR_UNROLL
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint64_t head = uint64_t{kv_head} * group + first_head + h;
      const uint64_t at = query * part.q_stride + head * shape.head_dim + begin;
      KVASIR_UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        const bool is_there = first_head + h < group && begin + i < shape.head_dim;
        q[h][i] = is_there ? load_at<float>(part.q + 4 * (at + i)) : 0.0f;
      }
    }
  }
};

// K or V of a tile's keys, read where they lie in global memory. load(): chunk i of a row, or zeros
// where `seen` has no bit of it.
template <KvType kType, bool kIsValue>
struct RowsInMemory {
  static constexpr uint32_t kAhead = kLoadsAhead<kType>;
  Shared<const KeyRow> rows;
  Shared<const uint32_t> types;
  uint32_t seen, dim;

  KVASIR_DEVICE void load(KvChunk<kType>& chunk, uint32_t row, uint32_t i) const {
    const uint32_t both = seen >> row & 1u ? types[row] : 0u;
    const uint32_t type = kIsValue ? both >> 8 : both & 0xffu;
    if (type == 0) return;
    const auto key = read_as<KeyRow>(rows + row);
    load_chunk(chunk, type, kIsValue ? key.v : key.k, i, dim);
  }
};

// dots[key][head] = q.k of the tile's 32 keys, of which k gives the rows. A lane loads 16 bytes of
// f16 at a time, neighbouring lanes neighbouring bytes, and each row once for all heads.
template <KvType kType, uint32_t kHeads, class Rows>
KVASIR_DEVICE void dot_products(const QueryChunk<kHeads>& query, uint32_t head_dim, const Rows& k,
                                Shared<float> dots) {
  const uint32_t lane = thread_x() % kWarpLanes;
  const uint32_t width = lanes_per_row(head_dim), rows_at_once = kWarpLanes / width;
  const uint32_t chunk = lane % width, share = width / kHeads;
  constexpr uint32_t kAhead = Rows::kAhead;
  for (uint32_t first = 0; first < kTile; first += rows_at_once * kAhead) {
    KvChunk<kType> raw[kAhead];
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t row = first + i * rows_at_once + lane / width;
      k.load(raw[i], row, chunk);
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      float x[kChunk], sums[kHeads];
      raw[i].floats(x);
      KVASIR_UNROLL
      for (uint32_t h = 0; h < kHeads; ++h) {
        sums[h] = 0.0f;
        KVASIR_UNROLL
        for (uint32_t d = 0; d < kChunk; ++d) sums[h] += query.q[h][d] * x[d];
      }
      const float sum = sum_over_lanes<kHeads>(sums, width);
      const uint32_t row = first + i * rows_at_once + lane / width;
      if (chunk % share == 0) dots[row * kHeads + chunk / share] = sum;
    }
  }
}

// softcap(softmax_scale * dot) + log_weight of one query head of the group. The product is rounded
// by itself, so that it is the same bits in every kernel that takes it.
KVASIR_DEVICE float logit_of(const AttentionShape& shape, const AttentionPart& part, uint64_t item,
                             uint32_t head_of_group, float dot) {
  float x = round_product(shape.softmax_scale, dot);
  if (shape.softcap != 0.0f) x = shape.softcap * tanhf(x / shape.softcap);
  if (!part.log_weight) return x;
  const uint64_t column = part.weight_width == 1 ? 0 : head_of_group;
  return x + load_at<float>(part.log_weight + 4 * (item * part.weight_width + column));
}

// The range of a unit, or of whatever a field counts: the last that begins at or before it.
template <class Range, size_t kField = offsetof(Range, first_unit)>
KVASIR_DEVICE uint32_t range_of_unit(uint64_t ranges, uint32_t n_ranges, uint64_t unit) {
  uint32_t low = 0, high = n_ranges;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    const uint64_t at = ranges + sizeof(Range) * middle + kField;
    (load_at<uint64_t>(at) <= unit ? low : high) = middle;
  }
  return low;
}

// The range that a block of threads of a launch computes for.
KVASIR_DEVICE AttentionRange range_of_block(uint64_t ranges, uint32_t n_ranges, uint64_t block) {
  const uint32_t i =
      range_of_unit<AttentionRange, offsetof(AttentionRange, first_block)>(ranges, n_ranges, block);
  return load_at<AttentionRange>(ranges + sizeof(AttentionRange) * i);
}

}  // namespace kvasir::cuda
