// The lanes of a vector that a mask names, moved together.
// SPDX-License-Identifier: Apache-2.0
#ifndef KVASIR_KERNELS_COMPRESS_INL_ONCE
#define KVASIR_KERNELS_COMPRESS_INL_ONCE

#include <array>
#include <cstdint>

namespace kvasir::kernels {

// For each mask of eight lanes, lane 0 lowest: the numbers of those that it names, ascending, and
// then zeros.
inline constexpr std::array<std::array<uint8_t, 8>, 256> kNamedLanes = [] {
  std::array<std::array<uint8_t, 8>, 256> lanes{};
  for (unsigned mask = 0; mask < 256; ++mask)
    for (unsigned lane = 0, count = 0; lane < 8; ++lane)
      if (mask >> lane & 1) lanes[mask][count++] = static_cast<uint8_t>(lane);
  return lanes;
}();

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_COMPRESS_INL_ONCE

#if defined(KVASIR_KERNELS_COMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_COMPRESS_INL_H_
#undef KVASIR_KERNELS_COMPRESS_INL_H_
#else
#define KVASIR_KERNELS_COMPRESS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// v: of f32 or uint32_t. The lanes of v that `kept` names come first, in their order; the others
// are in no defined state. With AVX2, gcc 12 copies Highway's table of lanes to the stack for every
// vector.
template <class V, class M>
HWY_INLINE V compress(V v, M kept) {
#if HWY_TARGET == HWY_AVX2
  const hn::DFromV<V> d;
  const hn::Repartition<float, decltype(d)> df;
  const int mask = _mm256_movemask_ps(hn::BitCast(df, hn::VecFromMask(d, kept)).raw);
  const auto* lanes =
      reinterpret_cast<const __m128i*>(kNamedLanes[static_cast<size_t>(mask)].data());
  const __m256i from = _mm256_cvtepu8_epi32(_mm_loadl_epi64(lanes));
  return hn::BitCast(d,
                     hn::Vec<decltype(df)>{_mm256_permutevar8x32_ps(hn::BitCast(df, v).raw, from)});
#else
  return hn::Compress(v, kept);
#endif
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_COMPRESS_INL_H_
