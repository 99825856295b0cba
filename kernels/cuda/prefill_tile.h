// Tiles of Q, K and V in shared memory, and their products on tensor cores: in the type of K and V
// (f16, bf16), or in f32 made of tf32 pieces.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/tensor.h"

namespace kvasir::cuda {

inline constexpr uint32_t kWarpRows = 16;  // of one product
static_assert(kWarpRows * kWarps == kPrefillRows);

// kDim: at least head_dim and v_dim. Rows are padded so that the lanes of a load meet in no bank.
template <KvType kType, uint32_t kWidth>
struct PrefillShape {
  static constexpr KvType kProduct = kType;
  static constexpr uint32_t kDim = kWidth;
  static constexpr bool kIsHalf = kProduct != KvType::kF32;
  using Element = std::conditional_t<kIsHalf, uint16_t, float>;
  static constexpr uint32_t kStride = kDim + 16 / sizeof(Element);
  // As many keys as fit into 99 KiB, what sm_86 and sm_89 give a block.
  static constexpr uint32_t kKeys = kIsHalf ? (kDim <= 128 ? 64 : 32) : (kDim <= 128 ? 32 : 16);
  // Tiles whose copies are on their way while one is multiplied.
  static constexpr uint32_t kAhead = kIsHalf && kDim <= 128 ? 1 : 0;
  static constexpr uint32_t kStages = kAhead + 1;
  static constexpr uint32_t kLists = kAhead + 2;  // one more is written while one is still read
  static constexpr uint32_t kListWarps = (kKeys + kWarpLanes - 1) / kWarpLanes;
  static constexpr uint32_t kRows = kPrefillRows;
  static constexpr uint32_t kQueryElements = kRows * kStride, kTileElements = kKeys * kStride;

  // Of element d of a row, in elements.
  KVASIR_DEVICE static uint32_t place(uint32_t row, uint32_t d) { return row * kStride + d; }
  KVASIR_DEVICE static Shared<Element> take(SharedMemory& shared, uint32_t n) {
    return shared.take<Element>(n);
  }
  static void add(SharedSize& size, uint32_t n) { size.add<Element>(n); }
};

// The keys of a tile.
template <class S>
struct KeyList {
  Shared<KeyRow> rows;
  Shared<uint64_t> items;
  Shared<uint32_t> types, pos;  // types 0: no row of the block sees it
  Shared<uint32_t> seen;        // [kListWarps] bits: keys that some row may see
  Shared<uint32_t> unseen;      // [kListWarps] bits: keys that some row may not see
};

template <class S>
struct PrefillMemory {
  using Element = typename S::Element;
  Shared<Element> q, k, v;  // [kPrefillRows]; [kStages][kKeys]: rows by S::place()
  KeyList<S> lists;         // kLists of them, one after the other

  KVASIR_DEVICE void take(SharedMemory& shared) {
    q = S::take(shared, S::kQueryElements);
    k = S::take(shared, S::kStages * S::kTileElements);
    v = S::take(shared, S::kStages * S::kTileElements);
    lists.rows = shared.take<KeyRow>(S::kLists * S::kKeys);
    lists.items = shared.take<uint64_t>(S::kLists * S::kKeys);
    lists.types = shared.take<uint32_t>(S::kLists * S::kKeys);
    lists.pos = shared.take<uint32_t>(S::kLists * S::kKeys);
    lists.seen = shared.take<uint32_t>(S::kLists * S::kListWarps);
    lists.unseen = shared.take<uint32_t>(S::kLists * S::kListWarps);
  }
  static uint32_t bytes() {
    SharedSize size;
    S::add(size, S::kQueryElements);
    S::add(size, S::kStages * S::kTileElements);
    S::add(size, S::kStages * S::kTileElements);
    size.add<KeyRow>(S::kLists * S::kKeys);
    size.add<uint64_t>(S::kLists * S::kKeys);
    size.add<uint32_t>(S::kLists * S::kKeys);
    size.add<uint32_t>(S::kLists * S::kKeys);
    size.add<uint32_t>(S::kLists * S::kListWarps);
    size.add<uint32_t>(S::kLists * S::kListWarps);
    return size.bytes;
  }
  KVASIR_DEVICE KeyList<S> list(uint64_t tile) const {
    const auto i = static_cast<uint32_t>(tile % S::kLists);
    return {lists.rows + i * S::kKeys,      lists.items + i * S::kKeys,
            lists.types + i * S::kKeys,     lists.pos + i * S::kKeys,
            lists.seen + i * S::kListWarps, lists.unseen + i * S::kListWarps};
  }
  KVASIR_DEVICE uint32_t stage(uint64_t tile) const {
    return static_cast<uint32_t>(tile % S::kStages) * S::kTileElements;
  }
};

// Eight elements from `chunk` on of a row of K or V to `to`; zeros where the row has none, or where
// nobody sees it (type 0). Half types travel ahead where rows are aligned.
template <class S>
KVASIR_DEVICE void bring_chunk(Shared<typename S::Element> to, uint32_t type, uint64_t row,
                               uint32_t chunk, uint32_t dim) {
  if constexpr (S::kIsHalf) {
    const bool is_there = type != 0 && chunk * kChunk < dim;
    const uint64_t at = row + uint64_t{2} * kChunk * chunk;
    if (!is_there || (at % sizeof(Bytes16) == 0 && (chunk + 1) * kChunk <= dim)) {
      copy_ahead(to, is_there ? at : row, is_there);
      return;
    }
    KvChunk<S::kProduct> raw;
    raw.load(row, chunk, dim);
    write_as(to, raw.bits);
  } else {
    KvChunk<KvType::kMixed> raw;
    if (type != 0) raw.load(static_cast<KvType>(type), row, chunk, dim);
    const float(&x)[kChunk] = raw.values;
    write_as(to, Floats4{x[0], x[1], x[2], x[3]});
    write_as(to + 4u, Floats4{x[4], x[5], x[6], x[7]});
  }
}

// K and V of the listed keys, up to a multiple of 16 elements.
template <class S>
KVASIR_DEVICE void bring_tile(const AttentionShape& shape, const KeyList<S>& list,
                              Shared<typename S::Element> k, Shared<typename S::Element> v) {
  const uint32_t k_chunks = (shape.head_dim + 15) / 16 * 2, v_chunks = (shape.v_dim + 15) / 16 * 2;
  const uint32_t chunks = k_chunks > v_chunks ? k_chunks : v_chunks;
  for (uint32_t i = thread_x(); i < S::kKeys * chunks; i += kThreads) {
    const uint32_t key = i / chunks, chunk = i % chunks, types = list.types[key];
    const auto row = read_as<KeyRow>(list.rows + key);
    const uint32_t at = S::place(key, chunk * kChunk);
    if (chunk < k_chunks) bring_chunk<S>(k + at, types & 0xffu, row.k, chunk, shape.head_dim);
    if (chunk < v_chunks) bring_chunk<S>(v + at, types >> 8, row.v, chunk, shape.v_dim);
  }
}

// A number as two of tf32, of which the second is what the first lacks.
struct Tf32Pair {
  uint32_t high, low;
};
KVASIR_DEVICE Tf32Pair split_tf32(float x) {
  const uint32_t high = round_tf32(x);
  return {high, round_tf32(x - bits_to_float(high))};
}

// d += a b in f32: three of the four products of the pieces, small ones first.
KVASIR_DEVICE void multiply_pieces(float (&d)[4], const Tf32Pair (&a)[4], const Tf32Pair (&b)[2]) {
  const uint32_t a_high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const uint32_t a_low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  const uint32_t b_high[2] = {b[0].high, b[1].high}, b_low[2] = {b[0].low, b[1].low};
  multiply_tf32(d, a_low, b_high);
  multiply_tf32(d, a_high, b_low);
  multiply_tf32(d, a_high, b_high);
}

template <class S>
KVASIR_DEVICE void multiply_halves(float (&d)[4], const uint32_t (&a)[4], uint32_t b_0,
                                   uint32_t b_1) {
  const uint32_t b[2] = {b_0, b_1};
  if constexpr (S::kProduct == KvType::kF16) {
    multiply_f16(d, a, b);
  } else {
    multiply_bf16(d, a, b);
  }
}

// dots[n] = rows of the warp times keys 8 n to 8 n + 7. q: of the warp's rows.
template <class S>
KVASIR_DEVICE void query_products(uint32_t head_dim, Shared<const typename S::Element> q,
                                  Shared<const typename S::Element> k,
                                  float (&dots)[S::kKeys / 8][4]) {
  const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) dots[n][i] = 0.0f;
  }
  if constexpr (S::kIsHalf) {
    for (uint32_t d = 0; d < head_dim; d += 16) {
      uint32_t a[4];
      load_matrices(a, q + (lane % 16 * S::kStride + d + lane / 16 * 8));
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(
            b, k + ((16 * n + lane / 16 * 8 + lane % 8) * S::kStride + d + lane / 8 % 2 * 8));
        multiply_halves<S>(dots[2 * n], a, b[0], b[1]);
        multiply_halves<S>(dots[2 * n + 1], a, b[2], b[3]);
      }
    }
  } else {
    for (uint32_t d = 0; d < head_dim; d += 8) {
      const uint32_t at = g * S::kStride + d + t, below = at + 8 * S::kStride;
      const Tf32Pair a[4] = {split_tf32(q[at]), split_tf32(q[below]), split_tf32(q[at + 4]),
                             split_tf32(q[below + 4])};
      KVASIR_UNROLL
      for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
        const uint32_t key = at + 8 * n * S::kStride;
        const Tf32Pair b[2] = {split_tf32(k[key]), split_tf32(k[key + 4])};
        multiply_pieces(dots[n], a, b);
      }
    }
  }
}

// o[n] += weights times elements 8 n to 8 n + 7 of the keys' values. A product's D lies as its A
// does in half types; in tf32 it does when keys 2t and 2t + 1 are taken for k = t and t + 4.
template <class S>
KVASIR_DEVICE void value_products(uint32_t v_dim, const float (&weights)[S::kKeys / 8][4],
                                  Shared<const typename S::Element> v, float (&o)[S::kDim / 8][4]) {
  const uint32_t lane = thread_x() % kWarpLanes, g = lane / 4, t = lane % 4;
  if constexpr (S::kIsHalf) {
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
      const float(&left)[4] = weights[2 * n];
      const float(&right)[4] = weights[2 * n + 1];
      constexpr bool kIsF16 = S::kProduct == KvType::kF16;
      const auto pack = [](float x, float y) { return kIsF16 ? pack_f16(x, y) : pack_bf16(x, y); };
      const uint32_t a[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                             pack(right[0], right[1]), pack(right[2], right[3])};
      KVASIR_UNROLL
      for (uint32_t d = 0; d < S::kDim / 16; ++d) {
        if (16 * d >= v_dim) continue;
        uint32_t b[4];
        load_matrices_transposed(b,
                                 v + ((16 * n + lane % 16) * S::kStride + 16 * d + lane / 16 * 8));
        multiply_halves<S>(o[2 * d], a, b[0], b[1]);
        multiply_halves<S>(o[2 * d + 1], a, b[2], b[3]);
      }
    }
  } else {
    KVASIR_UNROLL
    for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
      const Tf32Pair a[4] = {split_tf32(weights[n][0]), split_tf32(weights[n][2]),
                             split_tf32(weights[n][1]), split_tf32(weights[n][3])};
      const uint32_t at = (8 * n + 2 * t) * S::kStride + g;
      KVASIR_UNROLL
      for (uint32_t d = 0; d < S::kDim / 8; ++d) {
        if (8 * d >= v_dim) continue;
        const Tf32Pair b[2] = {split_tf32(v[at + 8 * d]), split_tf32(v[at + 8 * d + S::kStride])};
        multiply_pieces(o[d], a, b);
      }
    }
  }
}

}  // namespace kvasir::cuda
