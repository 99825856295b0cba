// Prefill attention. Scores are kept transposed, S^T [key, query row]: the softmax of a query row
// then runs down a vector lane, without sums or maxima across lanes, and no tile of K is ever
// transposed; only the queries are, once per call.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_prefill.h"

#include <algorithm>

#include "kernels/attention_state.h"
#include "kernels/kv_tile.h"
#include "kernels/tile_part.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_prefill.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/piece_logits-inl.h"
#include "kernels/row_product-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_ATTENTION_PREFILL_ONCE
#define KVASIR_KERNELS_ATTENTION_PREFILL_ONCE
namespace kvasir::kernels {

// A query row is one head of one query: row = query * group_size + head. Pieces of 64 (AVX-512) or
// 48 rows are worked on at a time; buffers are padded to a multiple of both.
inline constexpr size_t kRowPadding = 192;
inline constexpr size_t kColumnPadding = 32;  // the widest panel
inline constexpr size_t kMaxPieceRows = 64;

inline size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Scratch of one call, carved from the caller's memory; every part a multiple of 64 bytes.
struct PrefillScratch {
  float* q;        // panels of query rows [rows / panel, head_dim, panel], scaled
  float* o;        // [rows, o_stride]: sum of exp(logit - max) * v
  float* max;      // [rows]
  float* sum;      // [rows]
  int32_t* pos;    // [rows]
  float* k;        // [kTileTokens + kKeyPadding, k_stride]
  float* v;        // panels of columns [v_dim / panel, kTileTokens, panel]
  float* s;        // [kTileTokens + kKeyPadding, kMaxPieceRows]
  float* rescale;  // [kMaxPieceRows]
  float* weights;  // [group_size, kTileTokens]
  size_t k_stride;
  size_t o_stride;
};

inline size_t carve(const AttentionShape& shape, size_t n_q, uintptr_t memory, PrefillScratch* s) {
  const size_t rows = round_up(n_q * shape.group_size, kRowPadding);
  size_t used = 0;
  const auto take = [&](size_t n) {
    const uintptr_t at = memory + used * sizeof(float);
    used += round_up(n, 16);
    return reinterpret_cast<float*>(at);
  };
  s->k_stride = round_up(shape.head_dim, 16);
  s->o_stride = round_up(shape.v_dim, kColumnPadding);
  s->q = take(rows * shape.head_dim);
  s->o = take(rows * s->o_stride);
  s->max = take(rows);
  s->sum = take(rows);
  s->pos = reinterpret_cast<int32_t*>(take(rows));
  s->k = take((kTileTokens + kKeyPadding) * s->k_stride);
  s->v = take(kTileTokens * s->o_stride);
  s->s = take((kTileTokens + kKeyPadding) * kMaxPieceRows);
  s->rescale = take(kMaxPieceRows);
  s->weights = take(shape.group_size * kTileTokens);
  return used * sizeof(float);
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_ATTENTION_PREFILL_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

inline constexpr size_t kPieceRows = HWY_TARGET <= HWY_AVX3 ? 64 : 48;

// ------------------------------------------------------------------ layout of the operands

void pack_queries(const AttentionShape& shape, const QueryTile& t, const PrefillScratch& s) {
  const size_t rows = t.n_q * shape.group_size;
  const size_t padded_rows = round_up(rows, kRowPadding);
  for (size_t row = 0; row < padded_rows; ++row) {
    const size_t query = row / shape.group_size;
    const float* q = t.q + query * t.q_stride + row % shape.group_size * shape.head_dim;
    float* out = s.q + row / kPanel * kPanel * shape.head_dim + row % kPanel;
    for (size_t i = 0; i < shape.head_dim; ++i) {
      out[i * kPanel] = row < rows ? shape.softmax_scale * q[i] : 0.0f;
    }
    const size_t seen = row < rows ? query : t.n_q - 1;
    s.pos[row] = t.mask.q_pos ? static_cast<int32_t>(t.mask.q_pos[seen]) : 0;
    s.max[row] = kEmptyLse;
    s.sum[row] = 0.0f;
  }
  std::fill_n(s.o, padded_rows * s.o_stride, 0.0f);
}

// V rows cut into panels of columns.
template <class T>
void convert_values(const AttentionShape& shape, const KvTile& tile, const PrefillScratch& s) {
  const F32 d;
  for (size_t t = 0; t < tile.n; ++t) {
    const T* row = reinterpret_cast<const T*>(tile.v[t]);
    for (size_t c = 0; c < round_up(shape.v_dim, kPanel); c += kLanes) {
      float* out = s.v + c / kPanel * kPanel * kTileTokens + t * kPanel + c % kPanel;
      if (c + kLanes <= shape.v_dim) {
        hn::Store(load_at(d, row, c), d, out);
      } else {
        const size_t n = c < shape.v_dim ? shape.v_dim - c : 0;
        hn::Store(load_tail_at(d, row, c, n), d, out);
      }
    }
  }
}

void convert_tile(const AttentionShape& shape, const KvTile& tile, const PrefillScratch& s) {
  convert_keys(shape, tile, s.k, s.k_stride);
  with_row_type(shape.v_type, [&]<class T>(T) { convert_values<T>(shape, tile, s); });
}

// ------------------------------------------------------------------ softmax of a piece

// Columns of S^T: logits -> exp(logit - new maximum of the row); max, sum and rescale follow.
HWY_NOINLINE void softmax_piece(const PrefillScratch& s, size_t first_row, size_t n_rows,
                                const TilePart& part) {
  const F32 d;
  for (size_t r = 0; r < n_rows; r += kLanes) {
    float* column = s.s + r;
    const VecF32 old_max = hn::Load(d, s.max + first_row + r);
    VecF32 high = old_max;
    for (size_t t = part.key_begin; t < part.key_end; ++t) {
      high = hn::Max(hn::Load(d, column + t * kMaxPieceRows), high);
    }
    // A row that has seen nothing so far: exp(-inf - 0) = 0.
    const VecF32 none = hn::Set(d, kEmptyLse);
    const VecF32 shift = hn::IfThenZeroElse(hn::Eq(high, none), high);
    const VecF32 rescale = exp_nonpositive(d, hn::Sub(old_max, shift));
    VecF32 sum = hn::Mul(hn::Load(d, s.sum + first_row + r), rescale);
    for (size_t t = part.key_begin; t < part.key_end; ++t) {
      float* at = column + t * kMaxPieceRows;
      const VecF32 p = exp_nonpositive(d, hn::Sub(hn::Load(d, at), shift));
      hn::Store(p, d, at);
      sum = hn::Add(sum, p);
    }
    hn::Store(high, d, s.max + first_row + r);
    hn::Store(sum, d, s.sum + first_row + r);
    hn::Store(rescale, d, s.rescale + r);
  }
}

// ------------------------------------------------------------------ a piece of rows, a tile of
// keys

// S^T[key, row] = k . q for the keys of the part.
HWY_NOINLINE void score_piece(const AttentionShape& shape, const PrefillScratch& s,
                              size_t first_row, size_t n_rows, const TilePart& part) {
  for (size_t r = 0; r < n_rows; r += kPanel) {
    const float* q = s.q + (first_row + r) * shape.head_dim;
    for (size_t t = part.key_begin; t < part.key_end; t += kStep) {
      product_block(s.k + t * s.k_stride, s.k_stride, 1, q, shape.head_dim, nullptr,
                    s.s + t * kMaxPieceRows + r, kMaxPieceRows);
    }
  }
}

// o[row] = rescale[row] * o[row] + sum_t S^T[t, row] * v_t
HWY_NOINLINE void add_piece(const AttentionShape& shape, const PrefillScratch& s, size_t first_row,
                            size_t n_rows, const TilePart& part) {
  const float* p = s.s + part.key_begin * kMaxPieceRows;
  const size_t depth = part.key_end - part.key_begin;
  for (size_t c = 0; c < shape.v_dim; c += kPanel) {
    const float* v = s.v + c * kTileTokens + part.key_begin * kPanel;
    for (size_t r = 0; r < n_rows; r += kStep) {
      product_block(p + r, 1, kMaxPieceRows, v, depth, s.rescale + r,
                    s.o + (first_row + r) * s.o_stride + c, s.o_stride);
    }
  }
}

// One tile of keys for all pieces of rows; the tile is converted when the first piece needs it.
void attend_tile(const AttentionShape& shape, const QueryTile& t, const KvTile& tile,
                 const PrefillScratch& s) {
  const size_t rows = t.n_q * shape.group_size;
  const TileSpan span = span_of(tile);
  bool converted = false;
  for (size_t row = 0; row < rows; row += kPieceRows) {
    const size_t used = std::min(kPieceRows, rows - row);
    const auto [low, high] = std::minmax_element(s.pos + row, s.pos + row + used);
    const TilePart part = visible_part(tile, span, t.mask, *low, *high);
    if (part.key_begin >= part.key_end) continue;
    if (!converted) convert_tile(shape, tile, s);
    converted = true;
    const size_t n_rows = round_up(used, kPanel);
    score_piece(shape, s, row, n_rows, part);
    const PieceLogits logits{s.s, kMaxPieceRows, n_rows};
    if (shape.softcap != 0.0f) cap_logits(shape.softcap, part, logits);
    if (tile.weighted) add_weights(s.weights, shape.group_size, row, part, logits);
    if (part.masked) mask_logits(t.mask, tile, s.pos + row, part, logits);
    softmax_piece(s, row, n_rows, part);
    add_piece(shape, s, row, used, part);
  }
}

void prefill(const AttentionShape& shape, const QueryTile& t, std::span<const KvRows> items,
             void* scratch) {
  if (t.n_q == 0) return;
  PrefillScratch s;
  carve(shape, t.n_q, reinterpret_cast<uintptr_t>(scratch), &s);
  pack_queries(shape, t, s);
  KvTile tile;
  for (TileCursor cursor(items, shape.group_size); cursor.next(tile, s.weights);) {
    attend_tile(shape, t, tile, s);
  }
  for (size_t row = 0; row < t.n_q * shape.group_size; ++row) {
    const size_t query = row / shape.group_size;
    const size_t g = row % shape.group_size;
    float* o = t.o + query * t.o_stride + g * shape.v_dim;
    std::copy_n(s.o + row * s.o_stride, shape.v_dim, o);
    finish_attention(o, s.max[row], s.sum[row], shape.v_dim, t.lse + query * t.lse_stride + g);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(prefill);

size_t attention_prefill_scratch_bytes(const AttentionShape& shape, size_t n_q) {
  PrefillScratch s;
  return carve(shape, n_q, 0, &s);
}

void attention_prefill(const AttentionShape& shape, const QueryTile& queries,
                       std::span<const KvRows> items, void* scratch) {
  HWY_DYNAMIC_DISPATCH(prefill)(shape, queries, items, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
