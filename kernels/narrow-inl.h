// Rounding of f32 vectors to f16, bf16 and fp8, per SIMD target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_NARROW_INL_H_
#undef KVASIR_KERNELS_NARROW_INL_H_
#else
#define KVASIR_KERNELS_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

HWY_INLINE void store_row(VecF32 x, float* out) { hn::StoreU(x, F32(), out); }

// The low 16 bits of each lane.
template <class U>
HWY_INLINE void store_low_half(U bits, uint16_t* out) {
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint16_t, F32> du16;
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, bits)), du16, out);
}

// Each lane rounded to bf16, to nearest, ties to even, as an f32: only the upper 16 bits count.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> bf16_in_upper_half(D, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto nan = hn::RebindMask(du, hn::Ne(x, x));
  return hn::IfThenElse(nan, quiet, rounded);
}

HWY_INLINE void store_row(VecF32 x, hwy::bfloat16_t* out) {
  store_low_half(hn::ShiftRight<16>(bf16_in_upper_half(F32(), x)),
                 reinterpret_cast<uint16_t*>(out));
}

HWY_INLINE void store_row(VecF32 x, hwy::float16_t* out) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F32> df16;
  hn::StoreU(hn::DemoteTo(df16, x), df16, out);
#else
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, x)), hn::Set(du, 0x8000u));
  const VecF32 magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(du, magnitude);
  // Normal: rebias the exponent and round at bit 13.
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const auto rebiased = hn::Add(bits, hn::Add(odd, hn::Set(du, 0xfffu - (112u << 23))));
  const auto normal = hn::ShiftRight<13>(rebiased);
  // Below 2^-14: adding 0.5 puts the last bit of the result at the last bit of the sum.
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, hn::Set(d, 0.5f))),
                                 hn::BitCast(du, hn::Set(d, 0.5f)));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-14f)));
  const auto is_large = hn::RebindMask(du, hn::Ge(magnitude, hn::Set(d, 65520.0f)));
  const auto is_nan = hn::RebindMask(du, hn::Ne(x, x));
  auto half = hn::IfThenElse(is_small, subnormal, normal);
  half = hn::IfThenElse(is_large, hn::Set(du, 0x7c00u), half);
  half = hn::IfThenElse(is_nan, hn::Set(du, 0x7e00u), half);
  store_low_half(hn::Or(half, sign), reinterpret_cast<uint16_t*>(out));
#endif
}

// x moved so that rounding to f16 does not end above it (sign = -1) or below it (sign = +1), and
// kept finite. Rounding moves by at most half a step: 2^-11 of |x|, or 2^-25 among subnormals,
// where the margin is a little more: x that is lost beside 2^-25 would end at 0.
HWY_INLINE VecF32 outwards(VecF32 x, float sign, float*) {
  (void)sign;
  return x;
}

HWY_INLINE VecF32 outwards(VecF32 x, float sign, hwy::float16_t*) {
  const F32 d;
  constexpr float kLargest = 65504.0f;
  HWY_ALIGN hwy::float16_t half[kLanes];
  store_row(x, half);
  const VecF32 margin =
      hn::Max(hn::Mul(hn::Abs(x), hn::Set(d, 0x1p-11f)), hn::Set(d, 0x1.000002p-25f));
  const VecF32 moved = hn::MulAdd(margin, hn::Set(d, sign), x);
  const VecF32 safe = hn::IfThenElse(hn::Eq(load_row(d, half), x), x, moved);
  return hn::Min(hn::Set(d, kLargest), hn::Max(hn::Set(d, -kLargest), safe));
}

HWY_INLINE void store_row(VecF32 x, Fp8E4M3* out) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint8_t, F32> du8;
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80u));
  const VecF32 magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(du, magnitude);
  // Normal: rebias the exponent and round at bit 20; what exceeds the largest value is that.
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto rebiased = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7ffffu - (120u << 23))));
  const auto normal = hn::Min(hn::ShiftRight<20>(rebiased), hn::Set(du, 0x7eu));
  // Below 2^-6: adding 2^14 puts the last bit of the result, 2^-9, at the last bit of the sum.
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, hn::Set(d, 0x1p14f))),
                                 hn::BitCast(du, hn::Set(d, 0x1p14f)));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
  const auto is_finite = hn::Lt(bits, hn::Set(du, 0x7f800000u));
  auto byte = hn::IfThenElse(is_small, subnormal, normal);
  byte = hn::IfThenElse(is_finite, byte, hn::Set(du, 0x7fu));
  hn::StoreU(hn::DemoteTo(du8, hn::BitCast(di, hn::Or(byte, sign))), du8,
             reinterpret_cast<uint8_t*>(out));
}

// The first n < kLanes lanes.
template <class T>
HWY_INLINE void store_row_tail(VecF32 x, T* out, size_t n) {
  HWY_ALIGN T copy[kLanes];
  store_row(x, copy);
  for (size_t i = 0; i < n; ++i) out[i] = copy[i];
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_NARROW_INL_H_
