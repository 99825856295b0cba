// See collision.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/collision.h"

#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/collision.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// x^n by squaring.
template <class D>
HWY_INLINE hn::Vec<D> power(D d, hn::Vec<D> x, uint32_t n) {
  auto result = hn::Set(d, 1.0);
  for (; n != 0; n /= 2, x = hn::Mul(x, x)) {
    if (n % 2 != 0) result = hn::Mul(result, x);
  }
  return result;
}

template <class D>
HWY_INLINE hn::Vec<D> log_weight(D d, const Collisions& of, hn::Vec<D> cosine) {
  const auto one = hn::Set(d, 1.0);
  cosine = hn::IfThenElseZero(hn::Eq(cosine, cosine), cosine);
  cosine = hn::Max(hn::Set(d, -1.0), hn::Min(cosine, one));
  const auto angle = hn::Mul(hn::Acos(d, cosine), hn::Set(d, std::numbers::inv_pi));
  const auto p = power(d, hn::Sub(one, angle), of.n_bits);
  const auto miss = power(d, hn::Sub(one, p), of.n_tables - 1);  // of all tables but one
  const auto none = hn::Mul(miss, hn::Sub(one, p));
  const auto once = hn::Mul(hn::Mul(hn::Set(d, static_cast<double>(of.n_tables)), p), miss);
  const auto u = hn::Sub(hn::Sub(one, none), once);
  return hn::Neg(hn::Log(d, hn::Add(u, hn::Set(d, of.floor))));
}

void log_weights(const Collisions& of, double offset, double length, const float* norm, size_t n,
                 float* weight) {
  const auto at = [&](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> df;
    const auto dot = hn::PromoteTo(d, hn::LoadU(df, weight + i));
    const auto size = hn::Mul(hn::PromoteTo(d, hn::LoadU(df, norm + i)), hn::Set(d, length));
    const auto cosine = hn::Div(hn::Sub(dot, hn::Set(d, offset)), size);  // 0 / 0 is NaN
    hn::StoreU(hn::DemoteTo(df, log_weight(d, of, cosine)), df, weight + i);
  };
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) at(d, i);
  for (; i < n; ++i) at(one, i);
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(log_weights);

void collision_log_weights(const Collisions& of, double offset, double length, const float* norm,
                           size_t n, float* weight) {
  HWY_DYNAMIC_DISPATCH(log_weights)(of, offset, length, norm, n, weight);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
