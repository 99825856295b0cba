// Keys of four bits: those of one tile are transposed, so that each lane scores one key for all
// heads of the group.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/nibble_keys.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/nibble_keys.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_NIBBLE_KEYS_ONCE
#define KVASIR_KERNELS_NIBBLE_KEYS_ONCE
namespace kvasir::kernels {
namespace {

struct NibbleScale {
  float low, step;
};

constexpr size_t kWordNibbles = 8;
constexpr size_t kHeadTile = 8;       // sums in registers, of the 16 that older targets have
constexpr size_t kMostTileKeys = 64;  // 4 vectors of 16 lanes

// Of a key. Nibble i of word w is element 8 w + i.
inline size_t n_words(size_t head_dim) { return (head_dim + kWordNibbles - 1) / kWordNibbles; }
// Of q, zeros behind head_dim.
inline size_t query_floats(size_t head_dim) { return n_words(head_dim) * kWordNibbles; }

// The scores of a query q are low * sum of q + step * (q . nibbles).
struct NibbleScratch {
  NibbleScratch(void* memory, size_t n_heads, size_t head_dim)
      : q(static_cast<float*>(memory)),
        sum(q + n_heads * query_floats(head_dim)),
        tile(reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(sum + n_heads) + 63) / 64 *
                                         64)) {}
  float* q;        // [n_heads][query_floats]
  float* sum;      // [n_heads] of q
  uint32_t* tile;  // [n_words][keys of a tile], aligned
};

}  // namespace
}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_NIBBLE_KEYS_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

// Vectors of keys per tile: with few heads more of them keep as many sums in flight.
template <size_t GT>
constexpr size_t tile_vectors() {
  return GT == 1 ? 4 : GT <= 4 ? 2 : 1;
}

template <size_t GT>
HWY_INLINE void score_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT q_sum, size_t dim,
                           const uint32_t* HWY_RESTRICT tile, const float* HWY_RESTRICT low,
                           const float* HWY_RESTRICT step, float* HWY_RESTRICT score,
                           size_t score_stride, size_t count) {
  constexpr size_t kVectors = tile_vectors<GT>(), kKeys = kVectors * kLanes;
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const hn::RebindToSigned<F32> di;
  VecF32 sum[GT * kVectors];
  HWY_UNROLL(8) for (size_t i = 0; i < GT * kVectors; ++i) sum[i] = hn::Zero(d);
  for (size_t at = 0; at < dim; at += kWordNibbles, tile += kKeys) {
    hn::Vec<hn::RebindToUnsigned<F32>> word[kVectors];
    HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) word[v] = hn::Load(du, tile + v * kLanes);
    HWY_UNROLL(8) for (size_t i = 0; i < kWordNibbles; ++i) {
      VecF32 k[kVectors];
      HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
        k[v] = hn::ConvertTo(d, hn::BitCast(di, hn::And(word[v], hn::Set(du, 15u))));
        word[v] = hn::ShiftRight<4>(word[v]);
      }
      HWY_UNROLL(8) for (size_t g = 0; g < GT; ++g) {
        const VecF32 x = hn::Set(d, q[g * dim + at + i]);
        HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
          sum[g * kVectors + v] = hn::MulAdd(x, k[v], sum[g * kVectors + v]);
        }
      }
    }
  }
  HWY_ALIGN float out[kKeys];
  for (size_t g = 0; g < GT; ++g) {
    for (size_t v = 0; v < kVectors; ++v) {
      const VecF32 base = hn::Mul(hn::Load(d, low + v * kLanes), hn::Set(d, q_sum[g]));
      const VecF32 scale = hn::Load(d, step + v * kLanes);
      hn::Store(hn::MulAdd(scale, sum[g * kVectors + v], base), d, out + v * kLanes);
    }
    std::memcpy(score + g * score_stride, out, count * sizeof(float));
  }
}

template <size_t GT>
HWY_INLINE void score_heads(const NibbleScratch& scratch, size_t head_dim, const void* const* keys,
                            size_t n, float* score, size_t score_stride) {
  constexpr size_t kKeys = tile_vectors<GT>() * kLanes;
  static_assert(kKeys <= kMostTileKeys);
  const size_t words = n_words(head_dim), key_bytes = nibble_key_bytes(head_dim);
  const size_t ahead = std::max(ahead_rows(key_bytes), kKeys);
  HWY_ALIGN float low[kKeys], step[kKeys];
  for (size_t begin = 0; begin < n; begin += kKeys) {
    for (size_t i = 0; i < kKeys; ++i) {
      prefetch_row(keys[std::min(begin + i + ahead, n - 1)], key_bytes);
      const auto* key = static_cast<const uint8_t*>(keys[std::min(begin + i, n - 1)]);
      NibbleScale scale;
      std::memcpy(&scale, key, sizeof scale);
      low[i] = scale.low;
      step[i] = scale.step;
      for (size_t w = 0; w < words; ++w) {
        std::memcpy(scratch.tile + w * kKeys + i, key + sizeof scale + w * sizeof(uint32_t),
                    sizeof(uint32_t));
      }
    }
    score_tile<GT>(scratch.q, scratch.sum, words * kWordNibbles, scratch.tile, low, step,
                   score + begin, score_stride, std::min(kKeys, n - begin));
  }
}

void score_keys(NibbleScratch scratch, size_t n_heads, size_t head_dim, const void* const* keys,
                size_t n, float* score, size_t score_stride) {
  for (size_t g = 0; g < n_heads; g += kHeadTile) {
    const auto of = [&](auto heads) HWY_ATTR {
      score_heads<decltype(heads)::value>(scratch, head_dim, keys, n, score + g * score_stride,
                                          score_stride);
    };
    using std::integral_constant;
    switch (std::min(kHeadTile, n_heads - g)) {
      case 1:
        of(integral_constant<size_t, 1>());
        break;
      case 2:
        of(integral_constant<size_t, 2>());
        break;
      case 3:
        of(integral_constant<size_t, 3>());
        break;
      case 4:
        of(integral_constant<size_t, 4>());
        break;
      case 5:
        of(integral_constant<size_t, 5>());
        break;
      case 6:
        of(integral_constant<size_t, 6>());
        break;
      case 7:
        of(integral_constant<size_t, 7>());
        break;
      default:
        of(integral_constant<size_t, 8>());
    }
    scratch.q += kHeadTile * query_floats(head_dim);
    scratch.sum += kHeadTile;
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(score_keys);

size_t nibble_key_bytes(size_t head_dim) {
  return sizeof(NibbleScale) + n_words(head_dim) * sizeof(uint32_t);
}

size_t nibble_score_scratch_bytes(size_t n_heads, size_t head_dim) {
  const size_t tile = n_words(head_dim) * kMostTileKeys * sizeof(uint32_t);
  return n_heads * (query_floats(head_dim) + 1) * sizeof(float) + 64 + tile;
}

void score_nibble_keys(const float* q, size_t n_heads, size_t head_dim, const void* const* keys,
                       size_t n, float* score, size_t score_stride, void* scratch) {
  if (n == 0) return;
  NibbleScratch work(scratch, n_heads, head_dim);
  const size_t dim = query_floats(head_dim);
  for (size_t g = 0; g < n_heads; ++g) {
    const float* from = q + g * head_dim;
    std::fill(std::copy_n(from, head_dim, work.q + g * dim), work.q + (g + 1) * dim, 0.0f);
    double sum = 0.0;
    for (size_t d = 0; d < head_dim; ++d) sum += double{from[d]};
    work.sum[g] = static_cast<float>(sum);
  }
  HWY_DYNAMIC_DISPATCH(score_keys)(work, n_heads, head_dim, keys, n, score, score_stride);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
