// Prefill attention in bf16. Scores are kept transposed, S^T [key, query row], as in the f32
// kernel. The operands of a product are pairs of bf16 along its depth: of head elements in Q K^T,
// of neighbouring keys in P V. K rows are read as they are, one pair broadcast; queries are packed
// once per call, V once per tile, P where the softmax writes it.
//
// With AMX both products are made of tiles of 16 rows by 16 pairs, in blocks of 32 by 32 results:
// S^T = K Q^T of the same operands, and O^T = V^T P^T, for which V is packed the other way around.
// A tile adds up its first and its second elements by themselves, so its 32 keys begin at fixed
// places of a tile of keys.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_prefill_bf16.h"

#include <algorithm>

#include "kernels/attention_state.h"
#include "kernels/kv_tile.h"
#include "kernels/tile_part.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_prefill_bf16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/bf16_pairs-inl.h"
#include "kernels/piece_logits-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_ATTENTION_PREFILL_BF16_ONCE
#define KVASIR_KERNELS_ATTENTION_PREFILL_BF16_ONCE
namespace kvasir::kernels {

// A query row is one head of one query: row = query * group_size + head. Two vectors of 16 rows are
// a piece; a register block is 8 keys (or rows) by two vectors.
inline constexpr size_t kBf16Piece = 32;
inline constexpr size_t kBf16Step = 8;
static_assert(kBf16Piece == kAmxColumns);

// Scratch of one call, carved from the caller's memory; every part a multiple of 64 bytes. A pair
// is two bf16 in 32 bits, the first in the lower half.
struct Bf16Scratch {
  uint32_t* q;     // pairs along the head: [rows / kBf16Piece, head_pairs, kBf16Piece], scaled
  float* o;        // [rows, o_stride]: sum of exp(logit - max) * v; with tiles
                   // [rows / kBf16Piece, o_stride, kBf16Piece]
  float* max;      // [rows]
  float* sum;      // [rows]
  int32_t* pos;    // [rows]
  uint32_t* k;     // pairs along the head: [kTileTokens + kBf16Step, head_pairs]
  uint32_t* v;     // pairs of keys: [v_dim / kBf16Piece, kTileTokens / 2, kBf16Piece]; with tiles
                   // [v_dim / kAmxRows, kTileTokens / 2 / kAmxPairs, kAmxRows, kAmxPairs]
  float* s;        // [kTileTokens + kBf16Step, kBf16Piece]
  uint32_t* p;     // pairs of keys: [kTileTokens / 2, kBf16Piece]
  float* rescale;  // [kBf16Piece]
  float* weights;  // [group_size, kTileTokens]
  size_t head_pairs;
  size_t o_stride;
  bool tiles;
};

inline size_t bf16_round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

inline size_t carve(const AttentionShape& shape, size_t n_q, uintptr_t memory, Bf16Scratch* s) {
  const size_t rows = bf16_round_up(n_q * shape.group_size, kBf16Piece);
  size_t used = 0;
  const auto take = [&]<class T>(size_t n, T*& to) {
    static_assert(sizeof(T) == 4);
    to = reinterpret_cast<T*>(memory + used * 4);
    used += bf16_round_up(n, 16);
  };
  s->head_pairs = bf16_round_up(shape.head_dim, 32) / 2;
  s->o_stride = bf16_round_up(shape.v_dim, kBf16Piece);
  take(rows * s->head_pairs, s->q);
  take(rows * s->o_stride, s->o);
  take(rows, s->max);
  take(rows, s->sum);
  take(rows, s->pos);
  take((kTileTokens + kBf16Step) * s->head_pairs, s->k);
  take(kTileTokens / 2 * s->o_stride, s->v);
  take((kTileTokens + kBf16Step) * kBf16Piece, s->s);
  take(kTileTokens / 2 * kBf16Piece, s->p);
  take(kBf16Piece, s->rescale);
  take(shape.group_size * kTileTokens, s->weights);
  return used * 4;
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_ATTENTION_PREFILL_BF16_ONCE

HWY_BEFORE_NAMESPACE();
#if KVASIR_HAS_BF16_PAIRS
HWY_PUSH_ATTRIBUTES(KVASIR_BF16_ATTRIBUTES)
#endif
namespace kvasir::kernels::HWY_NAMESPACE {

#if KVASIR_HAS_BF16_PAIRS

// sum + a.first * b.first + a.second * b.second, lane by lane.
HWY_INLINE VecF32 add_products(VecF32 sum, VecPairs a, VecPairs b) {
  return VecF32{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw),
                                 reinterpret_cast<__m512bh>(b.raw))};
}

// 2^y for y <= 0 to 3e-7 relative, exact for y = 0; 0 for -inf, NaN stays NaN.
// 2^floor(y) * p(y - floor(y)), p(r) = 1 + r c(r), c the interpolation of (2^r - 1) / r at the
// Chebyshev nodes of [0, 1].
HWY_INLINE VecF32 exp2_nonpositive(VecF32 y) {
  constexpr int kMinusFloor = 0x09;  // whole numbers, rounded down, no exception
  const F32 d;
  const VecF32 r{_mm512_reduce_ps(y.raw, kMinusFloor)};
  VecF32 p = hn::Set(d, 0.00178836874f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00919938760f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0556570544f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.240207194f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.693147568f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return VecF32{_mm512_scalef_ps(p.raw, y.raw)};
}

// c[i, 0 .. kBf16Piece) = scale[i] * c[i, ...] + sum_k a[i * a_row + k * a_column] * b[k, ...] for
// kBf16Step rows i, all sums in registers. scale == nullptr: c is only written.
//   a pairs; b [depth, kBf16Piece] pairs, contiguous; c f32, rows c_stride apart
HWY_INLINE void pair_product(const uint32_t* HWY_RESTRICT a, size_t a_row, size_t a_column,
                             const uint32_t* HWY_RESTRICT b, size_t depth,
                             const float* HWY_RESTRICT scale, float* HWY_RESTRICT c,
                             size_t c_stride) {
  const F32 d;
  const PairTag pairs;
  VecF32 sum[kBf16Step][2];
  HWY_UNROLL(8) for (size_t i = 0; i < kBf16Step; ++i) {
    if (scale) {
      const VecF32 f = hn::Set(d, scale[i]);
      sum[i][0] = hn::Mul(f, hn::Load(d, c + i * c_stride));
      sum[i][1] = hn::Mul(f, hn::Load(d, c + i * c_stride + kLanes));
    } else {
      sum[i][0] = hn::Zero(d);
      sum[i][1] = hn::Zero(d);
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    const VecPairs b0 = hn::Load(pairs, b + k * kBf16Piece);
    const VecPairs b1 = hn::Load(pairs, b + k * kBf16Piece + kLanes);
    HWY_UNROLL(8) for (size_t i = 0; i < kBf16Step; ++i) {
      const VecPairs ai = hn::Set(pairs, a[i * a_row + k * a_column]);
      sum[i][0] = add_products(sum[i][0], ai, b0);
      sum[i][1] = add_products(sum[i][1], ai, b1);
    }
  }
  HWY_UNROLL(8) for (size_t i = 0; i < kBf16Step; ++i) {
    hn::Store(sum[i][0], d, c + i * c_stride);
    hn::Store(sum[i][1], d, c + i * c_stride + kLanes);
  }
}

// ------------------------------------------------------------------ layout of the operands

// Elements [column, column + kLanes) of a row of n elements, zeros behind them.
template <class T>
HWY_INLINE VecF32 load_part(const T* row, size_t column, size_t n) {
  const F32 d;
  if (column + kLanes <= n) return load_at(d, row, column);
  if (column >= n) return hn::Zero(d);
  return load_tail_at(d, row, column, n - column);
}

// head_pairs pairs of neighbours of a row of n elements times `scale`.
template <class T>
HWY_INLINE void narrow_row(const T* row, size_t n, float scale, size_t head_pairs,
                           uint32_t* HWY_RESTRICT out) {
  const VecF32 f = hn::Set(F32(), scale);
  for (size_t i = 0; i < head_pairs; i += kLanes) {
    const VecF32 first = hn::Mul(f, load_part(row, 2 * i, n));
    const VecF32 second = hn::Mul(f, load_part(row, 2 * i + kLanes, n));
    hn::Store(narrow(first, second), PairTag(), out + i);
  }
}

void pack_queries(const AttentionShape& shape, const QueryTile& t, const Bf16Scratch& s) {
  const size_t rows = t.n_q * shape.group_size;
  const size_t padded_rows = bf16_round_up(rows, kBf16Piece);
  std::fill_n(s.q, padded_rows * s.head_pairs, 0u);
  for (size_t row = 0; row < padded_rows; ++row) {
    const size_t query = std::min(row / shape.group_size, t.n_q - 1);
    if (row < rows) {
      const float* q = t.q + query * t.q_stride + row % shape.group_size * shape.head_dim;
      uint32_t* out = s.q + row / kBf16Piece * kBf16Piece * s.head_pairs + row % kBf16Piece;
      HWY_ALIGN uint32_t pairs[kLanes];
      for (size_t i = 0; i < s.head_pairs; i += kLanes) {
        const VecF32 f = hn::Set(F32(), shape.softmax_scale);
        const VecF32 first = hn::Mul(f, load_part(q, 2 * i, shape.head_dim));
        const VecF32 second = hn::Mul(f, load_part(q, 2 * i + kLanes, shape.head_dim));
        hn::Store(narrow(first, second), PairTag(), pairs);
        for (size_t j = 0; j < kLanes; ++j) out[(i + j) * kBf16Piece] = pairs[j];
      }
    }
    s.pos[row] = t.mask.q_pos ? static_cast<int32_t>(t.mask.q_pos[query]) : 0;
    s.max[row] = kEmptyLse;
    s.sum[row] = 0.0f;
  }
  std::fill_n(s.o, padded_rows * s.o_stride, 0.0f);
}

// The keys that fill up the last step, or the last rows of tiles, are zero.
template <class T>
void narrow_keys(const AttentionShape& shape, const KvTile& tile, const Bf16Scratch& s) {
  for (size_t t = 0; t < tile.n; ++t) {
    narrow_row(reinterpret_cast<const T*>(tile.k[t]), shape.head_dim, 1.0f, s.head_pairs,
               s.k + t * s.head_pairs);
  }
  const size_t n = s.tiles ? bf16_round_up(tile.n, 2 * kAmxRows) - tile.n : kBf16Step;
  std::fill_n(s.k + tile.n * s.head_pairs, n * s.head_pairs, 0u);
}

// Pairs of rows, cut into panels of columns; a last row without partner is paired with zeros.
template <class T>
void zip_values(const AttentionShape& shape, const KvTile& tile, const Bf16Scratch& s) {
  for (size_t t = 0; t < tile.n; t += 2) {
    const T* first = reinterpret_cast<const T*>(tile.v[t]);
    const T* second = reinterpret_cast<const T*>(tile.v[t + 1 < tile.n ? t + 1 : t]);
    const size_t n_second = t + 1 < tile.n ? shape.v_dim : 0;
    for (size_t c = 0; c < s.o_stride; c += kLanes) {
      uint32_t* out = s.v + c / kBf16Piece * kBf16Piece * (kTileTokens / 2) + t / 2 * kBf16Piece +
                      c % kBf16Piece;
      hn::Store(zip(load_part(first, c, shape.v_dim), load_part(second, c, n_second)), PairTag(),
                out);
    }
  }
}

// The same turned around: tiles of kAmxRows columns, whose rows are kAmxPairs pairs of keys. Pairs
// behind the last key are zero up to the end of their tile.
template <class T>
void turn_values(const AttentionShape& shape, const KvTile& tile, const Bf16Scratch& s) {
  const size_t padded = bf16_round_up(tile.n, 2 * kAmxPairs);
  for (size_t t = 0; t < padded; t += 2) {
    const T* first = reinterpret_cast<const T*>(tile.v[std::min(t, tile.n - 1)]);
    const T* second = reinterpret_cast<const T*>(tile.v[std::min(t + 1, tile.n - 1)]);
    const size_t n_first = t < tile.n ? shape.v_dim : 0;
    const size_t n_second = t + 1 < tile.n ? shape.v_dim : 0;
    const size_t pair = t / 2;
    for (size_t c = 0; c < s.o_stride; c += kAmxRows) {
      HWY_ALIGN uint32_t pairs[kLanes];
      hn::Store(zip(load_part(first, c, n_first), load_part(second, c, n_second)), PairTag(),
                pairs);
      uint32_t* out =
          s.v + c * (kTileTokens / 2) + pair / kAmxPairs * kAmxRows * kAmxPairs + pair % kAmxPairs;
      for (size_t j = 0; j < kAmxRows; ++j) out[j * kAmxPairs] = pairs[j];
    }
  }
}

template <class Fn>
void with_half_type(ElementType type, const Fn& fn) {
  if (type == ElementType::kBF16) {
    fn(hwy::bfloat16_t());
  } else {
    fn(hwy::float16_t());
  }
}

void convert_tile(const AttentionShape& shape, const KvTile& tile, const Bf16Scratch& s) {
  with_half_type(shape.k_type, [&]<class T>(T) { narrow_keys<T>(shape, tile, s); });
  with_half_type(shape.v_type, [&]<class T>(T) {
    s.tiles ? turn_values<T>(shape, tile, s) : zip_values<T>(shape, tile, s);
  });
}

// ------------------------------------------------------------------ a piece of rows, a tile of
// keys

// S^T[key, row] = k . q for the keys of the part.
HWY_NOINLINE void score_piece(const Bf16Scratch& s, size_t first_row, const TilePart& part) {
  const uint32_t* q = s.q + first_row * s.head_pairs;
  for (size_t t = part.key_begin; t < part.key_end; t += kBf16Step) {
    pair_product(s.k + t * s.head_pairs, s.head_pairs, 1, q, s.head_pairs, nullptr,
                 s.s + t * kBf16Piece, kBf16Piece);
  }
}

// S^T -> logits: softcap, log-weights, and what the positions hide.
void finish_logits(const AttentionShape& shape, const QueryTile& t, const KvTile& tile,
                   const TilePart& part, size_t row, const Bf16Scratch& s) {
  const PieceLogits logits{s.s, kBf16Piece, kBf16Piece};
  if (shape.softcap != 0.0f) cap_logits(shape.softcap, part, logits);
  if (tile.weighted) add_weights(s.weights, shape.group_size, row, part, logits);
  if (part.masked) mask_logits(t.mask, tile, s.pos + row, part, logits);
}

// Columns of S^T: logits -> P = exp(logit - new maximum of the row), as pairs of keys; max, sum and
// rescale follow. The part is whole pairs. The exponent is taken to base 2.
HWY_NOINLINE void softmax_piece(const Bf16Scratch& s, size_t first_row, size_t key_begin,
                                size_t key_end) {
  const F32 d;
  const VecF32 log2e = hn::Set(d, 1.44269504f);
  const VecF32 none = hn::Set(d, kEmptyLse);
  for (size_t r = 0; r < kBf16Piece; r += kLanes) {
    const float* column = s.s + r;
    const VecF32 old_max = hn::Load(d, s.max + first_row + r);
    VecF32 high = old_max, high_odd = old_max;
    for (size_t t = key_begin; t < key_end; t += 2) {
      high = hn::Max(hn::Load(d, column + t * kBf16Piece), high);
      high_odd = hn::Max(hn::Load(d, column + (t + 1) * kBf16Piece), high_odd);
    }
    high = hn::Max(high, high_odd);
    // A row that has seen nothing so far: exp(-inf - 0) = 0.
    // Subtracted before it is multiplied: the compiler may fuse a product with what follows, and an
    // unchanged maximum has to rescale by exactly 1.
    const VecF32 shift = hn::IfThenZeroElse(hn::Eq(high, none), high);
    const VecF32 rescale = exp2_nonpositive(hn::Mul(hn::Sub(old_max, shift), log2e));
    VecF32 sum = hn::Mul(hn::Load(d, s.sum + first_row + r), rescale);
    VecF32 sum_odd = hn::Zero(d);
    for (size_t t = key_begin; t < key_end; t += 2) {
      const VecF32 s0 = hn::Load(d, column + t * kBf16Piece);
      const VecF32 s1 = hn::Load(d, column + (t + 1) * kBf16Piece);
      const VecF32 p0 = exp2_nonpositive(hn::Mul(hn::Sub(s0, shift), log2e));
      const VecF32 p1 = exp2_nonpositive(hn::Mul(hn::Sub(s1, shift), log2e));
      sum = hn::Add(sum, p0);
      sum_odd = hn::Add(sum_odd, p1);
      hn::Store(zip(p0, p1), PairTag(), s.p + t / 2 * kBf16Piece + r);
    }
    hn::Store(high, d, s.max + first_row + r);
    hn::Store(hn::Add(sum, sum_odd), d, s.sum + first_row + r);
    hn::Store(rescale, d, s.rescale + r);
  }
}

// o[row] = rescale[row] * o[row] + sum_t P[t, row] * v_t
HWY_NOINLINE void add_piece(const AttentionShape& shape, const Bf16Scratch& s, size_t first_row,
                            size_t n_rows, size_t key_begin, size_t key_end) {
  const uint32_t* p = s.p + key_begin / 2 * kBf16Piece;
  const size_t depth = (key_end - key_begin) / 2;
  for (size_t c = 0; c < shape.v_dim; c += kBf16Piece) {
    const uint32_t* v = s.v + c * (kTileTokens / 2) + key_begin / 2 * kBf16Piece;
    for (size_t r = 0; r < n_rows; r += kBf16Step) {
      pair_product(p + r, 1, kBf16Piece, v, depth, s.rescale + r,
                   s.o + (first_row + r) * s.o_stride + c, s.o_stride);
    }
  }
}

// ------------------------------------------------------------------ with tiles

// score_piece of keys [key_begin, key_end), multiples of 32.
HWY_NOINLINE void score_piece_in_tiles(const Bf16Scratch& s, size_t first_row, size_t key_begin,
                                       size_t key_end) {
  const uint32_t* q = s.q + first_row * s.head_pairs;
  const size_t k_row = s.head_pairs * sizeof(uint32_t);
  for (size_t t = key_begin; t < key_end; t += 2 * kAmxRows) {
    const uint32_t* k = s.k + t * s.head_pairs;
    tile_product<true>(k, k + kAmxRows * s.head_pairs, k_row, kAmxPairs, q, s.head_pairs, false,
                       s.s + t * kBf16Piece, [] {});
  }
}

// add_piece into O^T: o[c, row] = rescale[row] * o[c, row] + sum_t v_t[c] P[t, row]; keys as above.
HWY_NOINLINE void add_piece_in_tiles(const Bf16Scratch& s, size_t first_row, size_t key_begin,
                                     size_t key_end) {
  const F32 d;
  float* o = s.o + first_row * s.o_stride;
  const VecF32 r0 = hn::Load(d, s.rescale), r1 = hn::Load(d, s.rescale + kLanes);
  const VecF32 one = hn::Set(d, 1.0f);
  if (!hn::AllTrue(d, hn::And(hn::Eq(r0, one), hn::Eq(r1, one)))) {
    for (size_t c = 0; c < s.o_stride; ++c) {
      float* at = o + c * kBf16Piece;
      hn::Store(hn::Mul(r0, hn::Load(d, at)), d, at);
      hn::Store(hn::Mul(r1, hn::Load(d, at + kLanes)), d, at + kLanes);
    }
  }
  constexpr size_t kTile = kAmxRows * kAmxPairs;
  for (size_t c = 0; c < s.o_stride; c += 2 * kAmxRows) {
    const uint32_t* v = s.v + c * (kTileTokens / 2) + key_begin / (2 * kAmxPairs) * kTile;
    tile_product<true>(v, v + kAmxRows * (kTileTokens / 2), kAmxPairs * sizeof(uint32_t), kTile,
                       s.p + key_begin / 2 * kBf16Piece, (key_end - key_begin) / 2, true,
                       o + c * kBf16Piece, [] {});
  }
}

// The keys of the part and those beside it that share a tile; they are hidden from every row.
void attend_piece_in_tiles(const AttentionShape& shape, const QueryTile& t, const KvTile& tile,
                           TilePart part, size_t row, const Bf16Scratch& s) {
  constexpr size_t kKeys = 2 * kAmxPairs;
  const size_t begin = part.key_begin / kKeys * kKeys;
  const size_t end = bf16_round_up(part.key_end, kKeys), last = std::min(end, tile.n);
  const bool wider = begin != part.key_begin || last != part.key_end;
  const TilePart whole{begin, last, part.masked || wider};
  score_piece_in_tiles(s, row, begin, end);
  finish_logits(shape, t, tile, whole, row, s);
  std::fill_n(s.s + last * kBf16Piece, (end - last) * kBf16Piece, kEmptyLse);
  softmax_piece(s, row, begin, end);
  add_piece_in_tiles(s, row, begin, end);
}

// ------------------------------------------------------------------ without

// The part is taken as whole pairs of keys. At its front the row that comes in is masked; behind
// its end there is one only where the tile itself is odd: its logits are set to -inf.
void attend_piece(const AttentionShape& shape, const QueryTile& t, const KvTile& tile,
                  TilePart part, size_t row, size_t used, const Bf16Scratch& s) {
  part.key_begin &= ~size_t{1};
  part.key_end = std::min(bf16_round_up(part.key_end, 2), tile.n);
  score_piece(s, row, part);
  finish_logits(shape, t, tile, part, row, s);
  const size_t end = bf16_round_up(part.key_end, 2);
  if (end != part.key_end) std::fill_n(s.s + part.key_end * kBf16Piece, kBf16Piece, kEmptyLse);
  softmax_piece(s, row, part.key_begin, end);
  add_piece(shape, s, row, used, part.key_begin, end);
}

// One tile of keys for all pieces of rows; the tile is converted when the first piece needs it.
void attend_tile(const AttentionShape& shape, const QueryTile& t, const KvTile& tile,
                 const Bf16Scratch& s) {
  const size_t rows = t.n_q * shape.group_size;
  const TileSpan span = span_of(tile);
  bool converted = false;
  for (size_t row = 0; row < rows; row += kBf16Piece) {
    const size_t used = std::min(kBf16Piece, rows - row);
    const auto [low, high] = std::minmax_element(s.pos + row, s.pos + row + used);
    const TilePart part = visible_part(tile, span, t.mask, *low, *high);
    if (part.key_begin >= part.key_end) continue;
    if (!converted) convert_tile(shape, tile, s);
    converted = true;
    if (s.tiles)
      attend_piece_in_tiles(shape, t, tile, part, row, s);
    else
      attend_piece(shape, t, tile, part, row, used, s);
  }
}

void prefill_bf16(const AttentionShape& shape, const QueryTile& t, std::span<const KvRows> items,
                  void* scratch, bool in_tiles) {
  if (t.n_q == 0) return;
  Bf16Scratch s;
  carve(shape, t.n_q, reinterpret_cast<uintptr_t>(scratch), &s);
  s.tiles = in_tiles;
  const ConfiguredTiles configured(s.tiles);
  pack_queries(shape, t, s);
  KvTile tile;
  for (TileCursor cursor(items, shape.group_size); cursor.next(tile, s.weights);) {
    attend_tile(shape, t, tile, s);
  }
  for (size_t row = 0; row < t.n_q * shape.group_size; ++row) {
    const size_t query = row / shape.group_size;
    const size_t g = row % shape.group_size;
    float* o = t.o + query * t.o_stride + g * shape.v_dim;
    if (s.tiles) {
      const float* column = s.o + row / kBf16Piece * kBf16Piece * s.o_stride + row % kBf16Piece;
      for (size_t c = 0; c < shape.v_dim; ++c) o[c] = column[c * kBf16Piece];
    } else {
      std::copy_n(s.o + row * s.o_stride, shape.v_dim, o);
    }
    finish_attention(o, s.max[row], s.sum[row], shape.v_dim, t.lse + query * t.lse_stride + g);
  }
}

#else

void prefill_bf16(const AttentionShape&, const QueryTile&, std::span<const KvRows>, void*, bool) {}

#endif  // KVASIR_HAS_BF16_PAIRS

}  // namespace kvasir::kernels::HWY_NAMESPACE
#if KVASIR_HAS_BF16_PAIRS
HWY_POP_ATTRIBUTES
#endif
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(prefill_bf16);
HWY_EXPORT(has_bf16_pairs);

bool has_attention_prefill_bf16(const AttentionShape& shape) {
  const auto is_half = [](ElementType type) {
    return type == ElementType::kF16 || type == ElementType::kBF16;
  };
  return is_half(shape.k_type) && is_half(shape.v_type) && HWY_DYNAMIC_DISPATCH(has_bf16_pairs)();
}

size_t attention_prefill_bf16_scratch_bytes(const AttentionShape& shape, size_t n_q) {
  Bf16Scratch s;
  return carve(shape, n_q, 0, &s);
}

void attention_prefill_bf16(const AttentionShape& shape, const QueryTile& queries,
                            std::span<const KvRows> items, void* scratch, bool in_tiles) {
  HWY_DYNAMIC_DISPATCH(prefill_bf16)(shape, queries, items, scratch, in_tiles);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
