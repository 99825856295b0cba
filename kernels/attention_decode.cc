// Decode attention: K rows are dotted tile by tile, then the V rows of the tile are added up.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_decode.h"

#include <algorithm>
#include <optional>

#include "kernels/attention_state.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_decode.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/group_products-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_ATTENTION_DECODE_ONCE
#define KVASIR_KERNELS_ATTENTION_DECODE_ONCE
namespace kvasir::kernels {

// Rows are padded to 16 floats: a multiple of every target's vector.
inline size_t padded(size_t n) { return (n + 15) / 16 * 16; }

// Scratch of one head, carved from the caller's memory.
struct DecodeScratch {
  float* q;           // [group_size, padded(head_dim)], scaled, zero padded; or QueryGroups of it
  float* logits;      // [group_size, kTileTokens]; becomes exp(logit - max)
  float* weights[2];  // [group_size, kTileTokens], of a tile and of the next
  float* sum;         // [group_size, padded(v_dim)]: sum of exp(logit - max) * v
  float* max_logit;   // [group_size]
  float* exp_sum;     // [group_size]
  float* tile_most;   // [group_size]: the largest exp(logit - max) of a tile, but for rounding
  uint16_t* scales;   // [groups of a row, kTileTokens], those of a tile's keys, then of its values
  uint8_t* copies;    // [kTileTokens, bytes of a row of groups], of all heads: see RowRuns
};

// Floats before the scales; a multiple of 64 bytes.
inline size_t sum_floats(const AttentionShape& shape) {
  return padded(shape.group_size *
                (padded(shape.head_dim) + padded(shape.v_dim) + 3 * kTileTokens + 3));
}

// A multiple of 64 bytes.
inline size_t head_floats(const AttentionShape& shape) {
  const size_t n_groups = std::max(shape.head_dim, shape.v_dim) / kGroupElements;
  return sum_floats(shape) + n_groups * kTileTokens * sizeof(uint16_t) / sizeof(float);
}

// 0 where no row has groups; a multiple of 64.
inline size_t copies_bytes(const AttentionShape& shape) {
  size_t bytes = 0;
  if (group_elements(shape.k_type) > 1) bytes = row_bytes(shape.k_type, shape.head_dim);
  if (group_elements(shape.v_type) > 1)
    bytes = std::max(bytes, row_bytes(shape.v_type, shape.v_dim));
  return bytes * kTileTokens;
}

// Of head `head` of n_heads.
inline DecodeScratch carve(const AttentionShape& shape, size_t head, size_t n_heads,
                           void* scratch) {
  const size_t n = shape.group_size;
  DecodeScratch s{};
  s.q = static_cast<float*>(scratch) + head * head_floats(shape);
  s.logits = s.q + n * padded(shape.head_dim);
  s.weights[0] = s.logits + n * kTileTokens;
  s.weights[1] = s.weights[0] + n * kTileTokens;
  s.sum = s.weights[1] + n * kTileTokens;
  s.max_logit = s.sum + n * padded(shape.v_dim);
  s.exp_sum = s.max_logit + n;
  s.tile_most = s.exp_sum + n;
  s.scales = reinterpret_cast<uint16_t*>(s.q + sum_floats(shape));
  s.copies =
      reinterpret_cast<uint8_t*>(static_cast<float*>(scratch) + n_heads * head_floats(shape));
  return s;
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_ATTENTION_DECODE_ONCE

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
namespace kvasir::kernels::HWY_NAMESPACE {

// What is asked for while the rows of a tile are read.
struct Upcoming {
  TileRows next;     // the rows that are read after them
  size_t asked = 0;  // bytes of these, from the first on, that have been asked for
  // The rows that are read after these, where they are asked for, too; or null.
  LinesAhead* second = nullptr;
};

// fn<GT>(g) for heads g to g + GT - 1: fours, then the rest. The loops in f32 are written out: as
// calls of such a function they took a tenth more time in the cache.
template <class Fn>
HWY_INLINE void for_heads(size_t n_heads, const Fn& fn) {
  size_t g = 0;
  for (; g + 4 <= n_heads; g += 4) fn.template operator()<4>(g);
  if (n_heads - g == 3) fn.template operator()<3>(g);
  if (n_heads - g == 2) fn.template operator()<2>(g);
  if (n_heads - g == 1) fn.template operator()<1>(g);
}

// Whether the rows lie behind each other.
inline bool in_one_piece(const TileRows& rows) {
  return rows.in_one_piece || are_pieces(rows.rows, rows.n, rows.row_bytes, 1);
}

// Of rows that do, from byte `from` on.
inline LinesAhead lines_of_rows(const TileRows& rows, size_t from = 0) {
  return {rows.rows[0] + from, rows.n * rows.row_bytes - from};
}

// ------------------------------------------------------------------ softmax of a tile

// Lines that are asked for per vector of keys, see kPrefetchInSoftmaxOfIntegers: half as many again
// (Zen 5), or twice as many, gain less.
inline constexpr size_t kLinesInSoftmax = 4;

// logits of HT query heads from head `first` on -> exp(logit - new maximum), in place, n of them: a
// head alone would wait for each of its sums. Updates the maximum and the sum of exp(logit - max);
// `rescale` [HT] is what earlier sums must be multiplied by. Asks for lines of `ahead`, unless
// null.
template <size_t HT>
HWY_INLINE void exp_logits(const DecodeScratch& s, size_t first, const float* all_weights, size_t n,
                           float softcap, float* HWY_RESTRICT rescale, LinesAhead* ahead) {
  const F32 d;
  const size_t n_padded = (n + kLanes - 1) / kLanes * kLanes;
  float* HWY_RESTRICT logits = s.logits + first * kTileTokens;
  const bool weighted = all_weights != nullptr;
  if (softcap != 0.0f || weighted) {
    const float* HWY_RESTRICT weights = all_weights + first * kTileTokens;
    for (size_t g = 0; g < HT; ++g) {
      for (size_t i = n; i < n_padded; ++i) logits[g * kTileTokens + i] = 0.0f;
      for (size_t i = g * kTileTokens; i < g * kTileTokens + n_padded; i += kLanes) {
        VecF32 x = hn::Load(d, logits + i);
        if (softcap != 0.0f) x = soft_cap(d, x, softcap);
        if (weighted) x = hn::Add(x, hn::Load(d, weights + i));
        hn::Store(x, d, logits + i);
      }
    }
  }
  for (size_t g = 0; g < HT; ++g)
    for (size_t i = n; i < n_padded; ++i) logits[g * kTileTokens + i] = kEmptyLse;
  VecF32 high[HT], shift[HT], sum[HT];
  HWY_UNROLL(4) for (size_t g = 0; g < HT; ++g) high[g] = hn::Set(d, kEmptyLse);
  for (size_t i = 0; i < n_padded; i += kLanes) {
    HWY_UNROLL(4) for (size_t g = 0; g < HT; ++g) {
      high[g] = hn::Max(hn::Load(d, logits + g * kTileTokens + i), high[g]);
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < HT; ++g) {
    float& max_logit = s.max_logit[first + g];
    const float tile_max = hn::GetLane(hn::MaxOfLanes(d, high[g]));
    const bool is_higher = tile_max > max_logit;
    const float new_max = is_higher ? tile_max : max_logit;
    // Nothing attended so far: exp(-inf - 0) = 0.
    const float base = new_max == kEmptyLse ? 0.0f : new_max;
    const float lower = is_higher ? max_logit : tile_max;
    const float of_lower = hn::GetLane(exp_nonpositive(d, hn::Set(d, lower - base)));
    rescale[g] = is_higher ? of_lower : 1.0f;
    s.tile_most[first + g] = is_higher ? 1.0f : of_lower;
    max_logit = new_max;
    shift[g] = hn::Set(d, base);
    sum[g] = hn::Zero(d);
  }
  for (size_t i = 0; i < n_padded; i += kLanes) {
    HWY_UNROLL(4) for (size_t g = 0; g < HT; ++g) {
      float* at = logits + g * kTileTokens + i;
      const VecF32 p = exp_nonpositive(d, hn::Sub(hn::Load(d, at), shift[g]));
      hn::Store(p, d, at);
      sum[g] = hn::Add(sum[g], p);
    }
    if (ahead) ahead->ask<kLinesInSoftmax>();
  }
  HWY_UNROLL(4) for (size_t g = 0; g < HT; ++g) {
    float& exp_sum = s.exp_sum[first + g];
    exp_sum = exp_sum * rescale[g] + hn::GetLane(hn::SumOfLanes(d, sum[g]));
  }
}

HWY_INLINE void scale_row(float* HWY_RESTRICT row, size_t n, float factor) {
  const F32 d;
  const VecF32 f = hn::Set(d, factor);
  for (size_t i = 0; i < n; i += kLanes) hn::Store(hn::Mul(hn::Load(d, row + i), f), d, row + i);
}

// ------------------------------------------------------------------ sum of weighted V rows

// VT vectors of a row from `column` on; with `tail` elements of the only one.
template <size_t VT, class T>
HWY_INLINE void load_columns(const T* row, size_t column, size_t tail, VecF32* HWY_RESTRICT v) {
  const F32 d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<T, Q4Group> && VT % 2 == 0) {
    HWY_UNROLL(2)
    for (size_t i = 0; i < VT; i += 2)
      load_group(row[column / kGroupElements + i / 2], &v[i], &v[i + 1]);
    return;
  }
#endif
  HWY_UNROLL(4) for (size_t i = 0; i < VT; ++i) {
    const size_t at = column + i * kLanes;
    v[i] = tail ? load_tail_at(d, row, at, tail) : load_at(d, row, at);
  }
}

// acc_g[0 .. VT vectors) += p[g] * row for GT heads, asking for kLines lines
template <size_t GT, size_t VT, size_t kLines, class T, class Ahead>
HWY_INLINE void add_value_row(const float* HWY_RESTRICT p, const T* row, size_t column, size_t tail,
                              VecF32* HWY_RESTRICT acc, Ahead& ahead) {
  const F32 d;
  VecF32 v[VT];
  load_columns<VT>(row, column, tail, v);
  if constexpr (kLines > 0) ahead.template ask<kLines>();
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    const VecF32 weight = hn::Set(d, p[g * kTileTokens]);
    HWY_UNROLL(4)
    for (size_t i = 0; i < VT; ++i) acc[g * VT + i] = hn::MulAdd(weight, v[i], acc[g * VT + i]);
  }
}

// sum_g[0 .. VT vectors) += sum_r p[g][r] * v_r for GT heads, with GT * VT sums in registers.
// `tail` < kLanes elements of the only vector exist when it is not 0.
template <size_t GT, size_t VT, class T, class Ahead>
HWY_INLINE void add_value_columns(const float* HWY_RESTRICT p, const T* const* rows, size_t n_rows,
                                  size_t column, size_t tail, float* HWY_RESTRICT sum,
                                  size_t sum_stride, Ahead& ahead) {
  const F32 d;
  VecF32 acc[GT * VT];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(4) for (size_t i = 0; i < VT; ++i) {
      acc[g * VT + i] = hn::Load(d, sum + g * sum_stride + column + i * kLanes);
    }
  }
  size_t r = 0;
  // Groups in f32 are no whole lines.
  constexpr size_t kBytes = bytes_of_row<T>(VT * kLanes);
  constexpr size_t kRows = Grouped<T> ? 1 : steps_per_lines(kBytes);
  for (; r + kRows <= n_rows; r += kRows) {
    constexpr size_t kLines = lines_of(kRows * kBytes);
    if constexpr (kRows > 1) ahead.template ask<kLines>();
    // Unrolled, gcc 12 would mix the rows and run out of registers.
    HWY_UNROLL(1) for (size_t i = 0; i < kRows; ++i) {
      constexpr size_t kOfRow = kRows > 1 ? 0 : kLines;
      add_value_row<GT, VT, kOfRow>(p + r + i, rows[r + i], column, tail, acc, ahead);
    }
  }
  if constexpr (kRows > 1) {
    for (; r < n_rows; ++r) add_value_row<GT, VT, 0>(p + r, rows[r], column, tail, acc, ahead);
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(4) for (size_t i = 0; i < VT; ++i) {
      hn::Store(acc[g * VT + i], d, sum + g * sum_stride + column + i * kLanes);
    }
  }
}

// All columns of n_rows V rows for GT heads.
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_value_rows(const float* HWY_RESTRICT p, const T* const* rows, size_t n_rows,
                               size_t v_dim, float* HWY_RESTRICT sum, size_t sum_stride,
                               Ahead& ahead) {
  constexpr size_t kVectors = kDotTile / 4;
  size_t c = 0;
  for (; c + kVectors * kLanes <= v_dim; c += kVectors * kLanes) {
    if (kVectors == 3 && c + 4 * kLanes == v_dim)
      break;  // two and two are faster than three and one
    add_value_columns<GT, kVectors>(p, rows, n_rows, c, 0, sum, sum_stride, ahead);
  }
  if constexpr (kVectors == 3) {
    for (; c + 2 * kLanes <= v_dim; c += 2 * kLanes)
      add_value_columns<GT, 2>(p, rows, n_rows, c, 0, sum, sum_stride, ahead);
  }
  for (; c + kLanes <= v_dim; c += kLanes) {
    add_value_columns<GT, 1>(p, rows, n_rows, c, 0, sum, sum_stride, ahead);
  }
  if (c < v_dim) {
    add_value_columns<GT, 1>(p, rows, n_rows, c, v_dim - c, sum, sum_stride, ahead);
  }
}

// sum_g += sum_r p[g][r] * v_r. Groups of rows stay in the L1 cache while the columns and the heads
// are walked in pieces that fit the registers; `ahead` as for dot_heads().
template <class T, class Ahead>
HWY_INLINE void add_values(const DecodeScratch& s, size_t n_heads, const T* const* rows,
                           size_t n_rows, size_t v_dim, Ahead& ahead) {
  const size_t group = rows_together(bytes_of_row<T>(v_dim));
  const size_t stride = padded(v_dim);
  for (size_t r = 0; r < n_rows; r += group) {
    const size_t n = n_rows - r < group ? n_rows - r : group;
    auto&& next = ahead.of_group(r, n);
    for (size_t g = 0; g < n_heads; g += 4) {
      const float* p = s.logits + g * kTileTokens + r;
      float* sum = s.sum + g * stride;
      const size_t heads = n_heads - g;
      if (heads >= 4) add_value_rows<4>(p, rows + r, n, v_dim, sum, stride, next);
      if (heads == 3) add_value_rows<3>(p, rows + r, n, v_dim, sum, stride, next);
      if (heads == 2) add_value_rows<2>(p, rows + r, n, v_dim, sum, stride, next);
      if (heads == 1) add_value_rows<1>(p, rows + r, n, v_dim, sum, stride, next);
    }
    next.ask_rest();
  }
}

// ------------------------------------------------------------------ products in integers

#if KVASIR_GROUP_PRODUCTS

// products(ahead) of rows of T, asking for the next rows: line after line where all of them lie
// behind each other, which is a few hundredths faster there than pieces.
template <class T, class Fn>
HWY_INLINE void asking_for(const Upcoming& upcoming, size_t n_now, const Fn& products) {
  const auto& [next, asked, second] = upcoming;
  if (second && in_one_piece(next)) {
    constexpr size_t kOfThree = kAsksBeside<T> ? 2 : 3;
    LinesThroughCaches<kOfThree> lines(lines_of_rows(next), *second);
    products(lines);
  } else if (in_one_piece(next)) {
    LinesAhead lines = lines_of_rows(next, asked);
    products(lines);
    lines.ask_rest();
  } else if (PiecesAhead::serve(next.rows, next.n, next.row_bytes)) {
    PiecesAhead pieces(next.rows, next.n, next.row_bytes, n_now);
    products(pieces.of_group(0, n_now));
    pieces.ask_rest();
  } else {
    const auto* first = reinterpret_cast<const void* const*>(next.rows);
    RowsAhead rows(first, next.n, next.row_bytes);
    products(rows);
    rows.ask_rest();
  }
}

template <class T>
HWY_NOINLINE void dot_tile_in_integers(const AttentionShape& shape, KvTile& tile,
                                       const DecodeScratch& s, const Upcoming& upcoming) {
  const size_t n_groups = shape.head_dim / kGroupElements;
  const auto* q = reinterpret_cast<const QueryGroup*>(s.q);
  const RowRuns runs = runs_of(tile.k_rows(n_groups * sizeof(T)), s.copies);
  gather_scales<T>(runs, tile.n, n_groups, s.scales, upcoming.second);
  asking_for<T>(upcoming, tile.n, [&](auto& ahead) {
    for_heads(shape.group_size, [&]<size_t GT>(size_t g) {
      with_known_count<GT>(
          n_groups, [&](size_t n) HWY_ATTR __attribute__((always_inline)) {
            dot_groups<GT, T>(q + g * n, runs, tile.n, s.scales, n, s.logits + g * kTileTokens,
                              ahead);
          });
    });
  });
}

template <class T>
HWY_NOINLINE void add_tile_in_integers(const AttentionShape& shape, KvTile& tile,
                                       const DecodeScratch& s, const Upcoming& upcoming) {
  const size_t n_groups = shape.v_dim / kGroupElements, stride = padded(shape.v_dim);
  const RowRuns runs = runs_of(tile.v_rows(n_groups * sizeof(T)), s.copies);
  gather_scales<T>(runs, tile.n, n_groups, s.scales, upcoming.second);
  if (!takes_scales<T>(s.scales, hwy::RoundUpTo(tile.n, kRowsTogether) * n_groups)) {
    add_rows_in_f32<T>(s.logits, shape.group_size, runs, tile.n, n_groups, s.sum, stride);
    return;
  }
  asking_for<T>(upcoming, tile.n, [&](auto& ahead) {
    for_heads(shape.group_size, [&]<size_t GT>(size_t g) {
      with_known_count<GT>(
          n_groups, [&](size_t n) HWY_ATTR __attribute__((always_inline)) {
            add_groups<GT, T>(s.logits + g * kTileTokens, s.tile_most + g, runs, tile.n, s.scales,
                              n, s.sum + g * stride, stride, upcoming.second, ahead);
          });
    });
  });
}

// q [group_size, head_dim] as dot_tile_in_integers takes it.
template <class T>
void round_queries(const AttentionShape& shape, const float* q, const DecodeScratch& s) {
  static_assert(sizeof(QueryGroup) <= kGroupElements * sizeof(float));
  auto* groups = reinterpret_cast<QueryGroup*>(s.q);
  const size_t n = shape.group_size * shape.head_dim / kGroupElements;
  for (size_t i = 0; i < n; ++i)
    round_query<T>(q + i * kGroupElements, shape.softmax_scale, groups + i);
}

#endif  // KVASIR_GROUP_PRODUCTS

// ------------------------------------------------------------------ element types, the loop

// What is asked for while a tile of rows of `dim` elements is read: its rows from ahead_rows() on,
// then the first of `next`.
template <class T>
LinkedRows link_rows(const uint8_t** rows, size_t n_rows, size_t dim, const TileRows& next) {
  link_ahead(rows, n_rows, next.rows, next.n);
  const size_t row_bytes = bytes_of_row<T>(dim);
  return {reinterpret_cast<const void* const*>(rows + ahead_rows(row_bytes)), row_bytes};
}

// products(ahead), asking for the next rows while `rows` are read; for all of them, the few that
// softmax asked for included. Where they lie behind each other
// AVX2 asks without a branch: its steps read half a line, and with one per step f16 takes twice the
// time in the cache (Zen 3). Products in f32 with groups take longer than their bytes: no order of
// pieces shows there.
template <class T, class Fn>
HWY_INLINE void asking_ahead(const uint8_t** rows, size_t n_rows, size_t dim, const TileRows& next,
                             const Fn& products) {
  if (HWY_TARGET == HWY_AVX2 && in_one_piece(next)) {
    LinesAhead ahead = lines_of_rows(next);
    products(ahead);
    ahead.ask_rest();
  } else if (!Grouped<T> && PiecesAhead::serve(next.rows, next.n, next.row_bytes)) {
    PiecesAhead ahead(next.rows, next.n, next.row_bytes, n_rows);
    products(ahead);
  } else {
    const auto ahead = link_rows<T>(rows, n_rows, dim, next);
    products(ahead);
  }
}

template <class T>
HWY_NOINLINE void dot_tile(const AttentionShape& shape, KvTile& tile, const DecodeScratch& s,
                           const Upcoming& upcoming) {
  const size_t stride = padded(shape.head_dim);
  const auto* const* rows = reinterpret_cast<const T* const*>(tile.k);
  asking_ahead<T>(
      tile.k, tile.n, shape.head_dim,
      upcoming.next, [&](auto& ahead) HWY_ATTR __attribute__((always_inline)) {
        dot_heads(s.q, stride, shape.group_size, rows, tile.n, shape.head_dim, s.logits,
                  kTileTokens, ahead);
      });
}

template <class T>
HWY_NOINLINE void add_tile(const AttentionShape& shape, KvTile& tile, const DecodeScratch& s,
                           const Upcoming& upcoming) {
  const auto* const* rows = reinterpret_cast<const T* const*>(tile.v);
  asking_ahead<T>(
      tile.v, tile.n, shape.v_dim,
      upcoming.next, [&](auto& ahead) HWY_ATTR __attribute__((always_inline)) {
        add_values(s, shape.group_size, rows, tile.n, shape.v_dim, ahead);
      });
}

// q [group_size, head_dim] as dot_tile takes it.
void scale_queries(const AttentionShape& shape, const float* q, const DecodeScratch& s) {
  const size_t stride = padded(shape.head_dim);
  for (size_t g = 0; g < shape.group_size; ++g) {
    for (size_t i = 0; i < stride; ++i) {
      s.q[g * stride + i] =
          i < shape.head_dim ? shape.softmax_scale * q[g * shape.head_dim + i] : 0.0f;
    }
  }
}

// What differs by the types of K and V.
struct TileFunctions {
  bool dot_in_integers, add_in_integers;
  bool keys_ask_beside;  // kAsksBeside of the type of K
  void (*take_queries)(const AttentionShape&, const float* q, const DecodeScratch&);
  void (*dot)(const AttentionShape&, KvTile&, const DecodeScratch&, const Upcoming&);
  void (*add)(const AttentionShape&, KvTile&, const DecodeScratch&, const Upcoming&);
};

TileFunctions functions_for(const AttentionShape& shape) {
  TileFunctions out{};
  with_row_type(shape.k_type, [&]<class T>(T) {
    out.take_queries = scale_queries;
    out.dot = dot_tile<T>;
#if KVASIR_GROUP_PRODUCTS
    if constexpr (Grouped<T>) {
      if (!shape.in_integers) return;
      out.dot_in_integers = true;
      out.keys_ask_beside = kAsksBeside<T>;
      out.take_queries = round_queries<T>;
      out.dot = dot_tile_in_integers<T>;
    }
#endif
  });
  with_row_type(shape.v_type, [&]<class T>(T) {
    out.add = add_tile<T>;
#if KVASIR_GROUP_PRODUCTS
    if constexpr (Grouped<T>) {
      if (!shape.in_integers) return;
      out.add_in_integers = true;
      out.add = add_tile_in_integers<T>;
    }
#endif
  });
  return out;
}

// weights [group_size, kTileTokens]; null: none. ahead: as for exp_logits().
HWY_NOINLINE void softmax_tile(const AttentionShape& shape, const KvTile& tile,
                               const DecodeScratch& s, const float* weights, LinesAhead* ahead) {
  const size_t stride = padded(shape.v_dim);
  for_heads(shape.group_size, [&]<size_t HT>(size_t g) {
    float rescale[HT];
    exp_logits<HT>(s, g, weights, tile.n, shape.softcap, rescale, g == 0 ? ahead : nullptr);
    for (size_t i = 0; i < HT; ++i)
      if (rescale[i] != 1.0f) scale_row(s.sum + (g + i) * stride, stride, rescale[i]);
  });
}

void start(const AttentionShape& shape, const DecodeScratch& s) {
  std::fill_n(s.sum, shape.group_size * padded(shape.v_dim), 0.0f);
  std::fill_n(s.max_logit, shape.group_size, kEmptyLse);
  std::fill_n(s.exp_sum, shape.group_size, 0.0f);
}

void finish(const AttentionShape& shape, const DecodeScratch& s, float* o, float* lse) {
  for (size_t g = 0; g < shape.group_size; ++g) {
    float* out = o + g * shape.v_dim;
    const float* sum = s.sum + g * padded(shape.v_dim);
    for (size_t i = 0; i < shape.v_dim; ++i) out[i] = sum[i];
    finish_attention(out, s.max_logit[g], s.exp_sum[g], shape.v_dim, &lse[g]);
  }
}

// To write a line, the core has to have it: those of all results, which were last written, if ever,
// by another core or before much else was read.
void ask_for_results(const AttentionShape& shape, std::span<const DecodeHead> heads) {
  const size_t n = size_t{shape.group_size} * shape.v_dim;
  for (const DecodeHead& head : heads)
    for (size_t i = 0; i < n; i += 64 / sizeof(float)) __builtin_prefetch(head.o + i, 1, 3);
}

// Tile after tile of each head in turn.
class HeadWalk {
 public:
  HeadWalk(const AttentionShape& shape, std::span<const DecodeHead> heads,
           const DecodeScratch* scratch, const TileNeeds& needs)
      : n_heads_(heads.size()), scratch_(scratch) {
    for (size_t h = 0; h < n_heads_; ++h)
      cursors_[h] = TileCursor(heads[h].items, shape.group_size, needs);
  }
  // Fills the next tile, of `head`, and its weights[slot]; false at the end.
  bool next(KvTile& tile, size_t& head, size_t slot) {
    for (size_t misses = 0; misses < n_heads_; ++misses) {
      head = at_;
      at_ = at_ + 1 < n_heads_ ? at_ + 1 : 0;
      if (cursors_[head].next(tile, scratch_[head].weights[slot])) return true;
    }
    return false;
  }

 private:
  size_t n_heads_, at_ = 0;
  const DecodeScratch* scratch_;
  TileCursor cursors_[kMostDecodeHeads];
};

unsigned weight_steps([[maybe_unused]] ElementType v_type) {
  unsigned steps = 0;
#if KVASIR_GROUP_PRODUCTS
  with_row_type(v_type, [&]<class T>(T) {
    if constexpr (Grouped<T>) steps = kWeightSteps<T>;
  });
#endif
  return steps;
}

void decode(const AttentionShape& shape, std::span<const DecodeHead> heads, void* scratch) {
  const TileFunctions functions = functions_for(shape);
  const size_t k_bytes = row_bytes(shape.k_type, shape.head_dim);
  const size_t v_bytes = row_bytes(shape.v_type, shape.v_dim);
  DecodeScratch of_heads[kMostDecodeHeads];
  for (size_t h = 0; h < heads.size(); ++h) {
    of_heads[h] = carve(shape, h, heads.size(), scratch);
    start(shape, of_heads[h]);
    functions.take_queries(shape, heads[h].q, of_heads[h]);
  }
  // A tile is known while the one before it is attended to.
  KvTile tiles[2];
  size_t head_of[2] = {};
  TileNeeds needs{.positions = false};
  if (functions.dot_in_integers && functions.add_in_integers) {
    needs.k_bytes = k_bytes;
    needs.v_bytes = v_bytes;
  }
  const bool through_caches =
      kPrefetchThroughCaches && functions.dot_in_integers && functions.add_in_integers;
  const bool in_softmax =
      functions.add_in_integers ? kPrefetchInSoftmaxOfIntegers : kPrefetchInSoftmaxOfFloats;
  HeadWalk walk(shape, heads, of_heads, needs);
  bool more = walk.next(tiles[0], head_of[0], 0);
  for (size_t slot = 0; more; slot = 1 - slot) {
    KvTile &tile = tiles[slot], &following = tiles[1 - slot];
    const DecodeScratch& s = of_heads[head_of[slot]];
    more = walk.next(following, head_of[1 - slot], 1 - slot);
    const TileRows keys = following.k_rows(k_bytes), values = following.v_rows(v_bytes);
    if (!more) ask_for_results(shape, heads);
    const float* weights = tile.weighted ? s.weights[slot] : nullptr;
    if (through_caches && in_one_piece(keys) && in_one_piece(values)) {
      LinesAhead of_keys = lines_of_rows(keys), of_values = lines_of_rows(values);
      functions.dot(shape, tile, s, {.next = tile.v_rows(v_bytes), .second = &of_keys});
      softmax_tile(shape, tile, s, weights, functions.keys_ask_beside ? &of_keys : nullptr);
      of_keys.ask_rest();
      functions.add(shape, tile, s, {.next = keys, .second = &of_values});
      of_values.ask_rest();
      continue;
    }
    functions.dot(shape, tile, s, {.next = tile.v_rows(v_bytes)});
    std::optional<LinesAhead> lines;
    if (in_softmax && in_one_piece(keys)) lines.emplace(lines_of_rows(keys));
    softmax_tile(shape, tile, s, weights, lines ? &*lines : nullptr);
    functions.add(shape, tile, s, {.next = keys, .asked = lines ? lines->n_asked() : 0});
  }
  for (size_t h = 0; h < heads.size(); ++h) finish(shape, of_heads[h], heads[h].o, heads[h].lse);
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(decode);
HWY_EXPORT(weight_steps);

size_t attention_decode_scratch_bytes(const AttentionShape& shape, size_t n_heads) {
  return n_heads * head_floats(shape) * sizeof(float) + copies_bytes(shape);
}

unsigned attention_decode_weight_steps(ElementType v_type) {
  return HWY_DYNAMIC_DISPATCH(weight_steps)(v_type);
}

void attention_decode(const AttentionShape& shape, std::span<const DecodeHead> heads,
                      void* scratch) {
  HWY_DYNAMIC_DISPATCH(decode)(shape, heads, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
