// See attention_f64.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_f64.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_f64.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F64 = hn::ScalableTag<double>;
using VecF64 = hn::Vec<F64>;
constexpr size_t kQueries = 4;  // that share a row once it is in registers

HWY_INLINE VecF64 load_wide(const float* from) {
  return hn::PromoteTo(F64(), hn::LoadU(hn::Rebind<float, F64>(), from));
}

// Sums of two vectors each, so that an addition need not wait for the one before.
template <size_t kN>
HWY_INLINE void dots_of_row(const float* q, const float* row, size_t dim, double* dots,
                            size_t dot_stride) {
  const F64 d;
  const size_t lanes = hn::Lanes(d);
  VecF64 sum[kN], other[kN];
  for (size_t j = 0; j < kN; ++j) sum[j] = other[j] = hn::Zero(d);
  size_t at = 0;
  for (; at + 2 * lanes <= dim; at += 2 * lanes) {
    const VecF64 k0 = load_wide(row + at), k1 = load_wide(row + at + lanes);
    for (size_t j = 0; j < kN; ++j) {
      sum[j] = hn::MulAdd(load_wide(q + j * dim + at), k0, sum[j]);
      other[j] = hn::MulAdd(load_wide(q + j * dim + at + lanes), k1, other[j]);
    }
  }
  for (size_t j = 0; j < kN; ++j) {
    double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[j], other[j])));
    for (size_t i = at; i < dim; ++i)
      total += static_cast<double>(q[j * dim + i]) * static_cast<double>(row[i]);
    dots[j * dot_stride] = total;
  }
}

void dots_f64(const float* q, size_t n_q, const float* rows, size_t n_rows, size_t row_stride,
              size_t dim, double* dots, size_t dot_stride) {
  size_t j = 0;
  for (; j + kQueries <= n_q; j += kQueries)
    for (size_t i = 0; i < n_rows; ++i)
      dots_of_row<kQueries>(q + j * dim, rows + i * row_stride, dim, dots + j * dot_stride + i,
                            dot_stride);
  for (; j < n_q; ++j)
    for (size_t i = 0; i < n_rows; ++i)
      dots_of_row<1>(q + j * dim, rows + i * row_stride, dim, dots + j * dot_stride + i,
                     dot_stride);
}

double softmax_weights_f64(double* x, size_t n) {
  const F64 d;
  const size_t lanes = hn::Lanes(d);
  double high = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < n; ++i) {
    if (!(x[i] < std::numeric_limits<double>::infinity()))
      return std::numeric_limits<double>::quiet_NaN();
    if (x[i] > high) high = x[i];
  }
  if (high == -std::numeric_limits<double>::infinity()) high = 0.0;
  const VecF64 top = hn::Set(d, high);
  VecF64 sums = hn::Zero(d);
  const auto weigh = [&](double* at) HWY_ATTR {
    const VecF64 e = hn::Exp(d, hn::Sub(hn::LoadU(d, at), top));
    hn::StoreU(e, d, at);
    sums = hn::Add(sums, e);
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) weigh(x + i);
  if (i < n) {  // as the others are: std::exp may round another way
    double rest[hn::MaxLanes(d)];
    for (size_t at = 0; at < lanes; ++at)
      rest[at] = i + at < n ? x[i + at] : -std::numeric_limits<double>::infinity();
    weigh(rest);
    for (size_t at = 0; i + at < n; ++at) x[i + at] = rest[at];
  }
  return hn::GetLane(hn::SumOfLanes(d, sums));
}

void add_weighted_rows_f64(const double* weight, const float* rows, size_t n_rows,
                           size_t row_stride, size_t dim, double* sum) {
  const F64 d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n_rows; ++i) {
    const float* row = rows + i * row_stride;
    const VecF64 w = hn::Set(d, weight[i]);
    size_t at = 0;
    for (; at + lanes <= dim; at += lanes)
      hn::StoreU(hn::Add(hn::Mul(w, load_wide(row + at)), hn::LoadU(d, sum + at)), d, sum + at);
    for (; at < dim; ++at) sum[at] += weight[i] * static_cast<double>(row[at]);
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(dots_f64);
HWY_EXPORT(softmax_weights_f64);
HWY_EXPORT(add_weighted_rows_f64);

void dots_f64(const float* q, size_t n_q, const float* rows, size_t n_rows, size_t row_stride,
              size_t dim, double* dots, size_t dot_stride) {
  HWY_DYNAMIC_DISPATCH(dots_f64)(q, n_q, rows, n_rows, row_stride, dim, dots, dot_stride);
}

double softmax_weights_f64(double* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(softmax_weights_f64)(x, n);
}

void add_weighted_rows_f64(const double* weight, const float* rows, size_t n_rows,
                           size_t row_stride, size_t dim, double* sum) {
  HWY_DYNAMIC_DISPATCH(add_weighted_rows_f64)(weight, rows, n_rows, row_stride, dim, sum);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
