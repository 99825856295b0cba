// A loop over an array, written once for whole vectors and for what is left over.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_FOR_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_FOR_VECTORS_INL_H_
#undef KVASIR_KERNELS_FOR_VECTORS_INL_H_
#else
#define KVASIR_KERNELS_FOR_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// fn(d, i) for the elements [0, n): i on whole vectors, then on single elements.
template <class Fn>
HWY_INLINE void for_vectors(size_t n, const Fn& fn) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) fn(d, i);
  for (; i < n; ++i) fn(one, i);
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_FOR_VECTORS_INL_H_
