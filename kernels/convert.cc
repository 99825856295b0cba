// Conversion of rows: one pass, bound by memory.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/convert.h"

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
  for (; i + kLanes <= n; i += kLanes) store_row(load_row(d, in + i), out + i);
  if (i < n) store_row_tail(load_row_tail(d, in + i, n - i), out + i, n - i);
}

void narrow_row(const float* in, size_t n, ElementType type, void* out) {
  if (type == ElementType::kF32) copy_elements(in, n, static_cast<float*>(out));
  if (type == ElementType::kF16) copy_elements(in, n, static_cast<hwy::float16_t*>(out));
  if (type == ElementType::kBF16) copy_elements(in, n, static_cast<hwy::bfloat16_t*>(out));
}

void widen_row(const void* in, size_t n, ElementType type, float* out) {
  if (type == ElementType::kF32) copy_elements(static_cast<const float*>(in), n, out);
  if (type == ElementType::kF16) copy_elements(static_cast<const hwy::float16_t*>(in), n, out);
  if (type == ElementType::kBF16) copy_elements(static_cast<const hwy::bfloat16_t*>(in), n, out);
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
