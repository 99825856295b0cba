// Exponential and hyperbolic tangent on vectors, per SIMD target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_EXP_INL_H_
#undef KVASIR_KERNELS_EXP_INL_H_
#else
#define KVASIR_KERNELS_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x * 2^n, for whole n from -126 to 127
template <class D, class V = hn::Vec<D>>
HWY_INLINE V times_power_of_two(D d, V x, V n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(x.raw, n.raw)};
#endif
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(x, hn::BitCast(d, exponent));
}

// exp(x) for x <= 0 to 1.2e-7 relative; below -87 (where the result would leave the normal
// range) exactly 0, also for -inf; NaN stays NaN, so that a damaged row is seen in the output.
//
// x = n ln2 + r, |r| <= ln2 / 2; exp(r) = 1 + r + r^2 p(r), p the Chebyshev fit of degree 4
// (error of exp(r) 8e-9); ln2 is split so that n * kLn2High is exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  constexpr float kLowest = -87.0f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, kLn2Low), r);
  V p = hn::Set(d, 0.001392625083f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008363232884f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166655421f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666657667f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0f)));
  const V scaled = times_power_of_two(d, p, n);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kLowest)), scaled);  // whatever came out there
}

// softcap * tanh(x / softcap). Absolute error about 1e-7 * softcap.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V soft_cap(D d, V x, float softcap) {
  const V y = hn::Mul(x, hn::Set(d, 1.0f / softcap));
  const V e = exp_nonpositive(d, hn::Mul(hn::Abs(y), hn::Set(d, -2.0f)));
  const V one = hn::Set(d, 1.0f);
  const V tanh_abs = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::Mul(hn::CopySign(tanh_abs, y), hn::Set(d, softcap));
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_EXP_INL_H_
