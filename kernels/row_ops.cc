// Elementwise pieces of a transformer layer on single rows, and the mean of rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_ops.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_ops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/for_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;

// Sum of squares: lanes in f32 over at most 1024 elements, those sums in double, so that the error
// does not grow with the width of the row.
double sum_of_squares(const float* x, size_t n) {
  const F32 d;
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += 1024) {
    const size_t end = begin + 1024 < n ? begin + 1024 : n;
    VecF32 sum = hn::Zero(d);
    size_t i = begin;
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      const VecF32 v = hn::LoadU(d, x + i);
      sum = hn::MulAdd(v, v, sum);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; i < end; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return total;
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y) {
  const double mean = sum_of_squares(x, n) / static_cast<double>(n);
  const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale));
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, y + i);
  });
}

// g / (1 + exp(-x)). 1 / (1 + exp(-x)) = 1 / (1 + e) for x >= 0 and e / (1 + e) below, with
// e = exp(-|x|): no overflow.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V times_sigmoid(D d, V g, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = exp_nonpositive(d, hn::Neg(hn::Abs(x)));
  const V top = hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e);
  return hn::Div(hn::Mul(g, top), hn::Add(one, e));
}

void swiglu(float* gate, const float* up, size_t n) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(times_sigmoid(d, g, g), hn::LoadU(d, up + i)), d, gate + i);
  });
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
void geglu(float* gate, const float* up, size_t n) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    const auto cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(g, g)), g, g);
    const auto twice_u = hn::Mul(hn::Set(d, 1.5957691216057308f), cubic);  // 2 sqrt(2 / pi)
    hn::StoreU(hn::Mul(times_sigmoid(d, g, twice_u), hn::LoadU(d, up + i)), d, gate + i);
  });
}

void add_to(const float* x, size_t n, float* y) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

// Rows outside, columns inside: x is read in the order it lies in, y stays in the cache.
void mean_of_rows(const float* x, size_t n_rows, size_t width, float* y) {
  const auto rows = static_cast<float>(n_rows);
  for_vectors(width, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::Zero(d), d, y + i); });
  for (size_t r = 0; r < n_rows; ++r) {
    for_vectors(width, [&](auto d, size_t i) HWY_ATTR {
      const auto part = hn::Div(hn::LoadU(d, x + r * width + i), hn::Set(d, rows));
      hn::StoreU(hn::Add(hn::LoadU(d, y + i), part), d, y + i);
    });
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(rms_norm);
HWY_EXPORT(swiglu);
HWY_EXPORT(geglu);
HWY_EXPORT(add_to);
HWY_EXPORT(mean_of_rows);

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* y) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(x, weight, n, eps, y);
}

void swiglu(float* gate, const float* up, size_t n) { HWY_DYNAMIC_DISPATCH(swiglu)(gate, up, n); }

void geglu(float* gate, const float* up, size_t n) { HWY_DYNAMIC_DISPATCH(geglu)(gate, up, n); }

void add_to(const float* x, size_t n, float* y) { HWY_DYNAMIC_DISPATCH(add_to)(x, n, y); }

void mean_of_rows(const float* x, size_t n_rows, size_t width, float* y) {
  HWY_DYNAMIC_DISPATCH(mean_of_rows)(x, n_rows, width, y);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
