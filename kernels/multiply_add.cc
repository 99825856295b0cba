// Multiply-adds and nothing else; see multiply_add.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/multiply_add.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multiply_add.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kSideBySide = 12;

// Named one by one: an array of vectors would leave it to the compiler to keep them in registers.
void multiply_add(float a, float b, size_t n_rounds, float* x) {
  const hn::CappedTag<float, kMultiplyAddChains / kSideBySide> d;
  const size_t lanes = hn::Lanes(d);
  const auto va = hn::Set(d, a), vb = hn::Set(d, b);
  for (float* p = x; p < x + kMultiplyAddChains; p += kSideBySide * lanes) {
    const auto at = [&](size_t i) HWY_ATTR { return hn::LoadU(d, p + i * lanes); };
    auto v0 = at(0), v1 = at(1), v2 = at(2), v3 = at(3), v4 = at(4), v5 = at(5);
    auto v6 = at(6), v7 = at(7), v8 = at(8), v9 = at(9), v10 = at(10), v11 = at(11);
    for (size_t round = 0; round < n_rounds; ++round) {
      v0 = hn::MulAdd(v0, va, vb);
      v1 = hn::MulAdd(v1, va, vb);
      v2 = hn::MulAdd(v2, va, vb);
      v3 = hn::MulAdd(v3, va, vb);
      v4 = hn::MulAdd(v4, va, vb);
      v5 = hn::MulAdd(v5, va, vb);
      v6 = hn::MulAdd(v6, va, vb);
      v7 = hn::MulAdd(v7, va, vb);
      v8 = hn::MulAdd(v8, va, vb);
      v9 = hn::MulAdd(v9, va, vb);
      v10 = hn::MulAdd(v10, va, vb);
      v11 = hn::MulAdd(v11, va, vb);
    }
    const auto put = [&](auto v, size_t i) HWY_ATTR { hn::StoreU(v, d, p + i * lanes); };
    put(v0, 0), put(v1, 1), put(v2, 2), put(v3, 3), put(v4, 4), put(v5, 5);
    put(v6, 6), put(v7, 7), put(v8, 8), put(v9, 9), put(v10, 10), put(v11, 11);
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(multiply_add);

void multiply_add(float a, float b, size_t n_rounds, float* x) {
  HWY_DYNAMIC_DISPATCH(multiply_add)(a, b, n_rounds, x);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
