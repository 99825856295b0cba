// Conversion of rows: one pass, bound by memory.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/convert.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/narrow-inl.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

template <class In, class Out>
void copy_elements(const In* HWY_RESTRICT in, size_t n, Out* HWY_RESTRICT out) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_row(load_at(d, in, i), out + i);
  if (i < n) store_row_tail(load_tail_at(d, in, i, n - i), out + i, n - i);
}

// ------------------------------------------------------------------ groups

// Stores `scale` as binary16; returns its inverse as it was stored, 0 where it became 0. `poison`
// is NaN when an element of the group is not finite, else 0.
HWY_INLINE float store_scale(float scale, float poison, uint16_t* out) {
  const F32 d;
  HWY_ALIGN hwy::float16_t half[kLanes];
  store_row(hn::Set(d, scale + poison), half);
  HWY_ALIGN float stored[kLanes];
  hn::Store(load_row(d, half), d, stored);
  if (std::fabs(stored[0]) > 65504.0f) store_row(hn::Set(d, stored[0] - stored[0]), half);
  hwy::CopyBytes<2>(half, out);
  return stored[0] != 0.0f ? 1.0f / stored[0] : 0.0f;
}

// NaN when one of the elements is not finite, else 0.
HWY_INLINE float poison_of(const float* HWY_RESTRICT x) {
  const F32 d;
  VecF32 sum = hn::Zero(d);
  for (size_t i = 0; i < kGroupElements; i += kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, x + i), hn::Zero(d), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// steps[i] = x[i] * inverse to the nearest integer, ties to even, within [low, high]; something in
// there where x is not finite.
HWY_INLINE void nearest_steps(const float* HWY_RESTRICT x, float inverse, int32_t low, int32_t high,
                              int32_t* HWY_RESTRICT steps) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  for (size_t i = 0; i < kGroupElements; i += kLanes) {
    const auto step = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(hn::Min(hn::Set(di, high), hn::Max(hn::Set(di, low), step)), di, steps + i);
  }
}

void quantize(const float* HWY_RESTRICT x, Q8Group* HWY_RESTRICT out) {
  const F32 d;
  VecF32 high = hn::Zero(d);
  for (size_t i = 0; i < kGroupElements; i += kLanes) {
    high = hn::Max(high, hn::Abs(hn::LoadU(d, x + i)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, high));
  const float inverse = store_scale(largest / 127.0f, poison_of(x), &out->scale);
  int32_t steps[kGroupElements];
  nearest_steps(x, inverse, -127, 127, steps);
  for (size_t i = 0; i < kGroupElements; ++i) out->q[i] = static_cast<int8_t>(steps[i]);
}

void quantize(const float* HWY_RESTRICT x, Q4Group* HWY_RESTRICT out) {
  float extreme = 0.0f;
  for (size_t i = 0; i < kGroupElements; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float inverse = store_scale(extreme / -8.0f, poison_of(x), &out->scale);
  int32_t steps[kGroupElements];
  nearest_steps(x, inverse, -8, 7, steps);
  for (size_t i = 0; i < kGroupElements / 2; ++i) {
    const int32_t low = steps[i] + 8, upper = steps[kGroupElements / 2 + i] + 8;
    out->q[i] = static_cast<uint8_t>(low | upper << 4);
  }
}

template <class T>
void narrow_to(const float* HWY_RESTRICT in, size_t n, T* HWY_RESTRICT out) {
  if constexpr (Grouped<T>) {
    for (size_t i = 0; i < n / kGroupElements; ++i) quantize(in + i * kGroupElements, out + i);
  } else {
    copy_elements(in, n, out);
  }
}

void narrow_row(const float* in, size_t n, ElementType type, void* out) {
  with_row_type(type, [&]<class T>(T) { narrow_to(in, n, static_cast<T*>(out)); });
}

void widen_row(const void* in, size_t n, ElementType type, float* out) {
  with_row_type(type, [&]<class T>(T) { copy_elements(static_cast<const T*>(in), n, out); });
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(narrow_row);
HWY_EXPORT(widen_row);

void convert_from_f32(ElementType type, const float* in, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(narrow_row)(in, n, type, out);
}

void convert_to_f32(ElementType type, const void* in, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(widen_row)(in, n, type, out);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
