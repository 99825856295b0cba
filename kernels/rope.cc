// Rotation of pairs: each vector of cosines and sines is loaded once for all rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/for_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

// The multiply-adds are spelt out: left to the compiler, whole vectors and single elements could
// round differently.
template <class V>
HWY_INLINE void turn(V cos, V sin, V& a, V& b) {
  const V first = hn::NegMulAdd(b, sin, hn::Mul(a, cos));
  b = hn::MulAdd(a, sin, hn::Mul(b, cos));
  a = first;
}

void rotate_rows(RopePairing pairing, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin,
                 size_t n_pairs, float* HWY_RESTRICT x, size_t n_rows, size_t row_stride) {
  const bool interleaved = pairing == RopePairing::kInterleaved;
  for_vectors(n_pairs, [&](auto d, size_t i) HWY_ATTR {
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    for (size_t row = 0; row < n_rows; ++row) {
      float* first = x + row * row_stride + (interleaved ? 2 * i : i);
      hn::Vec<decltype(d)> a, b;
      if (interleaved) {
        hn::LoadInterleaved2(d, first, a, b);
        turn(c, s, a, b);
        hn::StoreInterleaved2(a, b, d, first);
      } else {
        a = hn::LoadU(d, first);
        b = hn::LoadU(d, first + n_pairs);
        turn(c, s, a, b);
        hn::StoreU(a, d, first);
        hn::StoreU(b, d, first + n_pairs);
      }
    }
  });
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(rotate_rows);

void rotate_rows(RopePairing pairing, const float* cos, const float* sin, size_t n_pairs, float* x,
                 size_t n_rows, size_t row_stride) {
  HWY_DYNAMIC_DISPATCH(rotate_rows)(pairing, cos, sin, n_pairs, x, n_rows, row_stride);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
