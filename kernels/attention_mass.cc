// Attention mass, tile by tile: the logits of all queries against 128 keys, then their exponential.
// Few queries take a row of logits each; many queries take S^T [key, query], as prefill
// attention does, so that nothing is summed across lanes but once per key and head.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_mass.h"

#include <algorithm>

#include "kernels/attention_state.h"
#include "kernels/kv_tile.h"
#include "kernels/tile_part.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_mass.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/piece_logits-inl.h"
#include "kernels/row_product-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_ATTENTION_MASS_ONCE
#define KVASIR_KERNELS_ATTENTION_MASS_ONCE
namespace kvasir::kernels {

inline size_t padded_dim(size_t n) { return (n + 15) / 16 * 16; }

struct MassScratch {
  float* q;        // [n_q * group_size, padded(head_dim)], scaled, zero padded
  float* logits;   // [group_size, kTileTokens]
  float* sum;      // [group_size, kTileTokens]
  float* weights;  // [group_size, kTileTokens]
};

inline MassScratch carve_mass(const AttentionShape& shape, size_t n_q, void* scratch) {
  MassScratch s{};
  s.q = static_cast<float*>(scratch);
  s.logits = s.q + n_q * shape.group_size * padded_dim(shape.head_dim);
  s.sum = s.logits + shape.group_size * kTileTokens;
  s.weights = s.sum + shape.group_size * kTileTokens;
  return s;
}

// From so many queries on S^T is not slower: half a panel of AVX-512, where both take the same
// time.
inline constexpr size_t kManyQueries = 16;
inline constexpr size_t kQueryPadding = 32;  // the widest panel
inline constexpr size_t kMostLanes = 16;

// A row is a query of one head: row = head * padded queries + query. Every part a multiple of 64
// bytes.
struct ManyMassScratch {
  float* q;        // panels of rows [rows / panel, head_dim, panel], scaled; padding is zero
  float* lse;      // [rows]; +inf of those that saw nothing, and of padding
  int32_t* pos;    // [padded queries]
  float* k;        // [kTileTokens + kKeyPadding, k_stride]
  float* s;        // [kTileTokens + kKeyPadding, kQueryPadding]
  float* sum;      // [kTileTokens, kMostLanes], of one head
  float* weights;  // [group_size, kTileTokens]
  size_t padded;   // queries
  size_t k_stride;
};

inline size_t carve_many(const AttentionShape& shape, size_t n_q, uintptr_t memory,
                         ManyMassScratch* s) {
  size_t used = 0;
  const auto take = [&](size_t n) {
    const uintptr_t at = memory + used * sizeof(float);
    used += padded_dim(n);
    return reinterpret_cast<float*>(at);
  };
  s->padded = (n_q + kQueryPadding - 1) / kQueryPadding * kQueryPadding;
  s->k_stride = padded_dim(shape.head_dim);
  s->q = take(shape.group_size * s->padded * shape.head_dim);
  s->lse = take(shape.group_size * s->padded);
  s->pos = reinterpret_cast<int32_t*>(take(s->padded));
  s->k = take((kTileTokens + kKeyPadding) * s->k_stride);
  s->s = take((kTileTokens + kKeyPadding) * kQueryPadding);
  s->sum = take(kTileTokens * kMostLanes);
  s->weights = take(shape.group_size * kTileTokens);
  return used * sizeof(float);
}

inline bool hidden(const PositionMask& mask, size_t query, uint32_t key_pos) {
  const int64_t distance = static_cast<int64_t>(mask.q_pos[query]) - key_pos;
  if (distance < mask.dist_min) return true;
  return mask.dist_max != UINT32_MAX && distance >= mask.dist_max;
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_ATTENTION_MASS_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

template <class T>
HWY_NOINLINE void dot_keys(const AttentionShape& shape, const KvTile& tile, const float* q,
                           size_t ahead, float* logits) {
  LinkedRows next;
  if (ahead != 0)
    next = {reinterpret_cast<const void* const*>(tile.k + ahead), bytes_of_row<T>(shape.head_dim)};
  dot_heads(q, padded_dim(shape.head_dim), shape.group_size,
            reinterpret_cast<const T* const*>(tile.k), tile.n, shape.head_dim, logits, kTileTokens,
            next);
}

// logits[t] -> exp(cap(logits[t]) + weights[t] - lse) for the whole tile.
HWY_INLINE void exp_shares(const AttentionShape& shape, float* HWY_RESTRICT logits,
                           const float* HWY_RESTRICT weights, float lse, size_t n) {
  const F32 d;
  const VecF32 shift = hn::Set(d, lse);
  for (size_t t = 0; t < n; t += kLanes) {
    VecF32 x = hn::Load(d, logits + t);
    if (shape.softcap != 0.0f) x = soft_cap(d, x, shape.softcap);
    if (weights) x = hn::Add(x, hn::Load(d, weights + t));
    // A share of the softmax is at most 1; rounding may say a little more.
    const VecF32 share = hn::Min(hn::Zero(d), hn::Sub(x, shift));
    hn::Store(exp_nonpositive(d, share), d, logits + t);
  }
}

// One query against one tile.
HWY_NOINLINE void mass_of_query(const AttentionShape& shape, const MassQueries& queries,
                                size_t query, const KvTile& tile, const MassScratch& s,
                                size_t ahead) {
  const size_t stride = padded_dim(shape.head_dim);
  const float* q = s.q + query * shape.group_size * stride;
  with_row_type(shape.k_type, [&]<class T>(T) { dot_keys<T>(shape, tile, q, ahead, s.logits); });
  for (size_t g = 0; g < shape.group_size; ++g) {
    float* share = s.logits + g * kTileTokens;
    float* sum = s.sum + g * kTileTokens;
    const float lse = queries.lse[query * queries.lse_stride + g];
    if (lse == kEmptyLse) continue;
    exp_shares(shape, share, tile.weighted ? s.weights + g * kTileTokens : nullptr, lse, tile.n);
    if (queries.mask.q_pos) {
      for (size_t t = 0; t < tile.n; ++t) {
        sum[t] += hidden(queries.mask, query, tile.pos[t]) ? 0.0f : share[t];
      }
    } else {
      for (size_t t = 0; t < tile.n; ++t) sum[t] += share[t];
    }
  }
}

void pack_mass_queries(const AttentionShape& shape, const MassQueries& queries, float* q) {
  const size_t stride = padded_dim(shape.head_dim);
  for (size_t i = 0; i < queries.n_q; ++i) {
    for (size_t g = 0; g < shape.group_size; ++g, q += stride) {
      const float* from = queries.q + i * queries.q_stride + g * shape.head_dim;
      for (size_t d = 0; d < stride; ++d) {
        q[d] = d < shape.head_dim ? shape.softmax_scale * from[d] : 0.0f;
      }
    }
  }
}

// Adds the sums of a tile to the caller's [key][width].
void add_tile_mass(const AttentionShape& shape, const MassScratch& s, size_t n, size_t width,
                   float* value) {
  for (size_t g = 0; g < shape.group_size; ++g) {
    const float* sum = s.sum + g * kTileTokens;
    float* out = value + (width == 1 ? 0 : g);
    for (size_t t = 0; t < n; ++t) out[t * width] += sum[t];
  }
}

// ------------------------------------------------------------------ many queries

void pack_many(const AttentionShape& shape, const MassQueries& queries, const ManyMassScratch& s) {
  for (size_t g = 0; g < shape.group_size; ++g) {
    for (size_t i = 0; i < s.padded; ++i) {
      const size_t row = g * s.padded + i;
      const float* q = queries.q + i * queries.q_stride + g * shape.head_dim;
      float* out = s.q + row / kPanel * kPanel * shape.head_dim + row % kPanel;
      for (size_t d = 0; d < shape.head_dim; ++d)
        out[d * kPanel] = i < queries.n_q ? shape.softmax_scale * q[d] : 0.0f;
      const float lse = i < queries.n_q ? queries.lse[i * queries.lse_stride + g] : kEmptyLse;
      s.lse[row] = lse == kEmptyLse ? -kEmptyLse : lse;
    }
  }
  for (size_t i = 0; i < s.padded; ++i) {
    const size_t seen = std::min(i, queries.n_q - 1);
    s.pos[i] = queries.mask.q_pos ? static_cast<int32_t>(queries.mask.q_pos[seen]) : 0;
  }
}

// s.sum[t, lane] += exp(logit - lse) of a panel of queries of head g, for the keys of the part.
HWY_NOINLINE void add_panel(const AttentionShape& shape, const PositionMask& mask,
                            const KvTile& tile, const TilePart& part, size_t g, size_t query,
                            const ManyMassScratch& s) {
  const F32 d;
  const size_t row = g * s.padded + query;
  const float* q = s.q + row * shape.head_dim;
  for (size_t t = part.key_begin; t < part.key_end; t += kStep) {
    product_block(s.k + t * s.k_stride, s.k_stride, 1, q, shape.head_dim, nullptr,
                  s.s + t * kQueryPadding, kQueryPadding);
  }
  const PieceLogits logits{s.s, kQueryPadding, kPanel};
  if (shape.softcap != 0.0f) cap_logits(shape.softcap, part, logits);
  if (part.masked) mask_logits(mask, tile, s.pos + query, part, logits);
  const VecF32 zero = hn::Zero(d);
  const VecF32 lse[2] = {hn::Load(d, s.lse + row), hn::Load(d, s.lse + row + kLanes)};
  for (size_t t = part.key_begin; t < part.key_end; ++t) {
    const float* at = s.s + t * kQueryPadding;
    const VecF32 weight = hn::Set(d, tile.weighted ? s.weights[g * kTileTokens + t] : 0.0f);
    VecF32 sum = hn::Load(d, s.sum + t * kMostLanes);
    for (size_t half = 0; half < 2; ++half) {
      const VecF32 x = hn::Add(hn::Load(d, at + half * kLanes), weight);
      // A share of the softmax is at most 1; rounding may say a little more.
      sum = hn::Add(sum, exp_nonpositive(d, hn::Min(zero, hn::Sub(x, lse[half]))));
    }
    hn::Store(sum, d, s.sum + t * kMostLanes);
  }
}

void mass_of_many(const AttentionShape& shape, const MassQueries& queries,
                  std::span<const KvRows> items, size_t width, float* value, void* scratch) {
  const F32 d;
  ManyMassScratch s;
  carve_many(shape, queries.n_q, reinterpret_cast<uintptr_t>(scratch), &s);
  pack_many(shape, queries, s);
  KvTile tile;
  for (TileCursor cursor(items, shape.group_size); cursor.next(tile, s.weights);) {
    const TileSpan span = span_of(tile);
    bool converted = false;
    for (size_t g = 0; g < shape.group_size; ++g) {
      std::fill_n(s.sum, kTileTokens * kMostLanes, 0.0f);
      for (size_t query = 0; query < queries.n_q; query += kPanel) {
        const size_t used = std::min(kPanel, queries.n_q - query);
        const auto [low, high] = std::minmax_element(s.pos + query, s.pos + query + used);
        const TilePart part = visible_part(tile, span, queries.mask, *low, *high);
        if (part.key_begin >= part.key_end) continue;
        if (!converted) convert_keys(shape, tile, s.k, s.k_stride);
        converted = true;
        add_panel(shape, queries.mask, tile, part, g, query, s);
      }
      float* out = value + (width == 1 ? 0 : g);
      for (size_t t = 0; t < tile.n; ++t)
        out[t * width] += hn::GetLane(hn::SumOfLanes(d, hn::Load(d, s.sum + t * kMostLanes)));
    }
    value += tile.n * width;
  }
}

// ------------------------------------------------------------------

void mass(const AttentionShape& shape, const MassQueries& queries, std::span<const KvRows> items,
          size_t width, float* value, void* scratch) {
  if (queries.n_q >= kManyQueries)
    return mass_of_many(shape, queries, items, width, value, scratch);
  const MassScratch s = carve_mass(shape, queries.n_q, scratch);
  pack_mass_queries(shape, queries, s.q);
  KvTile tile;
  for (TileCursor cursor(items, shape.group_size); cursor.next(tile, s.weights);) {
    link_ahead(tile.k, tile.n, tile.k, 0);
    std::fill_n(s.sum, shape.group_size * kTileTokens, 0.0f);
    size_t ahead = ahead_rows(row_bytes(shape.k_type, shape.head_dim));
    const uint32_t lowest = *std::min_element(tile.pos, tile.pos + tile.n);
    for (size_t query = 0; query < queries.n_q; ++query) {
      if (queries.mask.q_pos && queries.mask.q_pos[query] < lowest) continue;
      mass_of_query(shape, queries, query, tile, s, ahead);
      ahead = 0;  // the tile is in the cache now
    }
    add_tile_mass(shape, s, tile.n, width, value);
    value += tile.n * width;
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(mass);

size_t attention_mass_scratch_bytes(const AttentionShape& shape, size_t n_q) {
  if (n_q >= kManyQueries) {
    ManyMassScratch s;
    return carve_many(shape, n_q, 0, &s);
  }
  const size_t floats = n_q * padded_dim(shape.head_dim) + 3 * kTileTokens;
  return shape.group_size * floats * sizeof(float);
}

void attention_mass(const AttentionShape& shape, const MassQueries& queries,
                    std::span<const KvRows> items, size_t width, float* value, void* scratch) {
  HWY_DYNAMIC_DISPATCH(mass)(shape, queries, items, width, value, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
