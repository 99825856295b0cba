// The product of keys with packed queries, S^T [key, query row], in f32: what prefill attention and
// the mass of many queries are made of. Per SIMD target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_ROW_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_ROW_PRODUCT_INL_H_
#undef KVASIR_KERNELS_ROW_PRODUCT_INL_H_
#else
#define KVASIR_KERNELS_ROW_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/kv_tile.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kPanel = 2 * kLanes;
inline constexpr size_t kStep = HWY_TARGET <= HWY_AVX3 ? 8 : 6;  // rows of a register block

// c[i, 0 .. kPanel) = scale[i] * c[i, ...] + sum_k a[i * a_row + k * a_column] * b[k, ...] for
// kStep rows i, all sums in registers. scale == nullptr: c is only written.
//   b [depth, kPanel] contiguous, c rows c_stride apart
HWY_INLINE void product_block(const float* HWY_RESTRICT a, size_t a_row, size_t a_column,
                              const float* HWY_RESTRICT b, size_t depth,
                              const float* HWY_RESTRICT scale, float* HWY_RESTRICT c,
                              size_t c_stride) {
  const F32 d;
  VecF32 sum[kStep][2];
  HWY_UNROLL(8) for (size_t i = 0; i < kStep; ++i) {
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
    const VecF32 b0 = hn::Load(d, b + k * kPanel);
    const VecF32 b1 = hn::Load(d, b + k * kPanel + kLanes);
    HWY_UNROLL(8) for (size_t i = 0; i < kStep; ++i) {
      const VecF32 ai = hn::Set(d, a[i * a_row + k * a_column]);
      sum[i][0] = hn::MulAdd(ai, b0, sum[i][0]);
      sum[i][1] = hn::MulAdd(ai, b1, sum[i][1]);
    }
  }
  HWY_UNROLL(8) for (size_t i = 0; i < kStep; ++i) {
    hn::Store(sum[i][0], d, c + i * c_stride);
    hn::Store(sum[i][1], d, c + i * c_stride + kLanes);
  }
}

template <class T>
HWY_INLINE void convert_row(const T* row, size_t n, float* HWY_RESTRICT out) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::Store(load_at(d, row, i), d, out + i);
  if (i < n) hn::Store(load_tail_at(d, row, i, n - i), d, out + i);
}

// K rows of a tile in f32, k [kTileTokens + kKeyPadding, stride]; the keys that fill up the last
// step are zero.
inline void convert_keys(const AttentionShape& shape, const KvTile& tile, float* k, size_t stride) {
  with_row_type(shape.k_type, [&]<class T>(T) {
    for (size_t t = 0; t < tile.n; ++t)
      convert_row(reinterpret_cast<const T*>(tile.k[t]), shape.head_dim, k + t * stride);
  });
  std::fill_n(k + tile.n * stride, kKeyPadding * stride, 0.0f);
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_ROW_PRODUCT_INL_H_
