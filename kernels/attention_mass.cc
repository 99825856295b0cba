// Attention mass, tile by tile: the logits of all queries against 128 keys, then their exponential.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_mass.h"

#include <algorithm>

#include "kernels/attention_state.h"
#include "kernels/kv_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_mass.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
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
  dot_heads(q, padded_dim(shape.head_dim), shape.group_size,
            reinterpret_cast<const T* const*>(tile.k), tile.n, ahead, shape.head_dim, logits,
            kTileTokens);
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

void mass(const AttentionShape& shape, const MassQueries& queries, std::span<const KvRows> items,
          size_t width, float* value, void* scratch) {
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
  const size_t floats = n_q * padded_dim(shape.head_dim) + 3 * kTileTokens;
  return shape.group_size * floats * sizeof(float);
}

void attention_mass(const AttentionShape& shape, const MassQueries& queries,
                    std::span<const KvRows> items, size_t width, float* value, void* scratch) {
  HWY_DYNAMIC_DISPATCH(mass)(shape, queries, items, width, value, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
