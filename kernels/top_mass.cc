// Exponentials in SIMD; the bound of what is kept by bisection over the bits of the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/top_mass.h"

#include <algorithm>
#include <bit>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/top_mass.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/compress-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/for_vectors-inl.h"

#ifndef KVASIR_KERNELS_TOP_MASS_ONCE
#define KVASIR_KERNELS_TOP_MASS_ONCE
namespace kvasir::kernels {

// Weights are not negative: their bits grow as they do. 64 buckets per power of two.
constexpr uint32_t kBucketShift = 17;
inline uint32_t bucket_of(float weight) { return std::bit_cast<uint32_t>(weight) >> kBucketShift; }
inline float least_of_bucket(uint32_t bucket) {
  return std::bit_cast<float>(bucket << kBucketShift);
}

// Ascending: larger weights first, of equal ones the lower index.
inline uint64_t mass_key(float weight, uint32_t index) {
  return uint64_t{~std::bit_cast<uint32_t>(weight)} << 32 | index;
}
inline size_t index_of(uint64_t key) { return static_cast<uint32_t>(key); }

// Weights and their places; both arrays as long as the weights they came from.
struct Placed {
  float* weight;
  uint32_t* place;
};

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_TOP_MASS_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;
using F64 = hn::Repartition<double, F32>;

// ------------------------------------------------------------------ weights

// x = the logits; returns the largest, or NaN when one is not finite: hn::Max differs by target
// there.
float to_logits(float scale, float softcap, float* x, size_t n) {
  const F32 d;
  VecF32 high = hn::Set(d, -std::numeric_limits<float>::infinity()), check = hn::Zero(d);
  const auto logit = [&](auto tag, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, scale));
    const auto y = softcap > 0.0f ? soft_cap(tag, scaled, softcap) : scaled;
    hn::StoreU(y, tag, x + i);
    return y;
  };
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const VecF32 y = logit(d, i);
    high = hn::Max(high, y);
    check = hn::Add(check, hn::Sub(y, y));  // 0 of a finite number, else NaN
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, high));
  float finite = hn::GetLane(hn::SumOfLanes(d, check));
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) {
    const float y = hn::GetLane(logit(one, i));
    finite += y - y;
    most = most < y ? y : most;
  }
  return finite == 0.0f ? most : std::numeric_limits<float>::quiet_NaN();
}

double weights(float scale, float softcap, float* x, size_t n) {
  const hn::CappedTag<float, 1> one;
  const float high = to_logits(scale, softcap, x, n);
  double total = 0.0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const F32 d;
  const F64 d64;
  const hn::Half<F32> half;
  auto lower = hn::Zero(d64), upper = hn::Zero(d64);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const VecF32 e = exp_nonpositive(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, high)));
    hn::StoreU(e, d, x + i);
    lower = hn::Add(lower, hn::PromoteTo(d64, hn::LowerHalf(half, e)));
    upper = hn::Add(upper, hn::PromoteTo(d64, hn::UpperHalf(half, e)));
  }
  total = hn::GetLane(hn::SumOfLanes(d64, hn::Add(lower, upper)));
#endif
  for (; i < n; ++i) {
    const auto e = exp_nonpositive(one, hn::Sub(hn::LoadU(one, x + i), hn::Set(one, high)));
    hn::StoreU(e, one, x + i);
    total += static_cast<double>(hn::GetLane(e));
  }
  return n != 0 && high != high ? std::numeric_limits<double>::quiet_NaN() : total;
}

// ------------------------------------------------------------------ the heaviest

// Sum of the weights of at least `low`.
double sum_from(float low, const float* weight, size_t n) {
  double total = 0.0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const F32 d;
  const F64 d64;
  const hn::Half<F32> half;
  auto lower = hn::Zero(d64), upper = hn::Zero(d64);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const VecF32 w = hn::LoadU(d, weight + i);
    const VecF32 heavy = hn::IfThenElseZero(hn::Ge(w, hn::Set(d, low)), w);
    lower = hn::Add(lower, hn::PromoteTo(d64, hn::LowerHalf(half, heavy)));
    upper = hn::Add(upper, hn::PromoteTo(d64, hn::UpperHalf(half, heavy)));
  }
  total = hn::GetLane(hn::SumOfLanes(d64, hn::Add(lower, upper)));
#endif
  for (; i < n; ++i) total += weight[i] >= low ? static_cast<double>(weight[i]) : 0.0;
  return total;
}

// Those for which is_kept(d, weights) is true go to `to`, in their order; returns how many.
// place(d, i): of the weights from i on. `to` may be where the weights come from: what is written
// lies before what is still to be read.
template <class Place, class IsKept>
HWY_INLINE size_t keep(const float* weight, size_t n, const Place& place, const IsKept& is_kept,
                       const Placed& to) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const hn::CappedTag<float, 1> one;
  size_t count = 0, i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const VecF32 w = hn::LoadU(d, weight + i);
    const auto at = place(du, i);
    const auto kept = is_kept(d, w);
    // Whole vectors are stored: what lies behind the kept ones is overwritten by the next.
    hn::StoreU(compress(w, kept), d, to.weight + count);
    hn::StoreU(compress(at, hn::RebindMask(du, kept)), du, to.place + count);
    count += hn::CountTrue(d, kept);
  }
  for (; i < n; ++i) {
    const auto w = hn::LoadU(one, weight + i);
    const auto at = place(hn::RebindToUnsigned<decltype(one)>(), i);
    if (hn::AllFalse(one, is_kept(one, w))) continue;
    to.weight[count] = hn::GetLane(w);
    to.place[count++] = hn::GetLane(at);
  }
  return count;
}

// The weights of at least `low`, with their indices as places.
size_t gather_from(float low, const float* weight, size_t n, const Placed& to) {
  return keep(
      weight, n, [](auto du, size_t i) HWY_ATTR { return hn::Iota(du, static_cast<uint32_t>(i)); },
      [&](auto d, auto w) HWY_ATTR { return hn::Ge(w, hn::Set(d, low)); }, to);
}

// Of n placed weights those of at least `bound`, or the others.
size_t keep_side(float bound, bool upper, size_t n, const Placed& of) {
  const auto place = [&](auto du, size_t i) HWY_ATTR { return hn::LoadU(du, of.place + i); };
  if (upper) {
    return keep(
        of.weight, n, place, [&](auto d, auto w) HWY_ATTR { return hn::Ge(w, hn::Set(d, bound)); },
        of);
  }
  return keep(
      of.weight, n, place, [&](auto d, auto w) HWY_ATTR { return hn::Lt(w, hn::Set(d, bound)); },
      of);
}

// Weights above `least` anywhere, and equal ones up to index `last`.
void mark(const float* weight, size_t n, float least, size_t last, uint8_t* marked) {
  for (size_t i = 0; i < n; ++i) {
    const bool is_kept = weight[i] > least || (weight[i] == least && i <= last);
    marked[i] = static_cast<uint8_t>(marked[i] | (is_kept ? 1 : 0));
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(weights);
HWY_EXPORT(sum_from);
HWY_EXPORT(gather_from);
HWY_EXPORT(keep_side);
HWY_EXPORT(mark);

double softmax_weights(float scale, float softcap, float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(weights)(scale, softcap, x, n);
}

size_t top_mass_scratch_bytes(size_t n) {
  return n * (sizeof(uint64_t) + sizeof(float) + sizeof(uint32_t));
}

void mark_top_mass(const float* weight, size_t n, double total, double share, uint8_t* marked,
                   void* scratch) {
  const double wanted = share * total;
  if (n == 0 || !(wanted > 0.0)) return;
  auto* keys = static_cast<uint64_t*>(scratch);
  auto* copy = reinterpret_cast<float*>(keys + n);
  const Placed left{copy, reinterpret_cast<uint32_t*>(copy + n)};
  // All that is lighter than this weighs less than what need not be kept; halved against rounding.
  const auto lightest = static_cast<float>((1.0 - share) * total / static_cast<double>(n) / 2);
  // What lies in bucket `first` and above reaches it, what lies in `end` and above does not. What
  // lies between is `left`: each pass reads about half of what the one before has read.
  uint32_t first = bucket_of(lightest), end = bucket_of(1.0f) + 1;
  size_t n_left = HWY_DYNAMIC_DISPATCH(gather_from)(least_of_bucket(first), weight, n, left);
  double reached = 0.0;  // by `end` and above
  while (end - first > 1 && n_left != 0) {
    const uint32_t middle = first + (end - first) / 2;
    const float bound = least_of_bucket(middle);
    const double sum = reached + HWY_DYNAMIC_DISPATCH(sum_from)(bound, left.weight, n_left);
    const bool reaches = !(sum < wanted);
    (reaches ? first : end) = middle;
    if (!reaches) reached = sum;
    n_left = HWY_DYNAMIC_DISPATCH(keep_side)(bound, reaches, n_left, left);
  }
  const size_t n_keys = n_left;
  for (size_t i = 0; i < n_keys; ++i) keys[i] = mass_key(left.weight[i], left.place[i]);
  if (n_keys == 0) {  // rounding: all there are were to reach it
    return HWY_DYNAMIC_DISPATCH(mark)(weight, n, lightest, n, marked);
  }
  std::sort(keys, keys + n_keys);
  size_t last = 0;
  for (; last + 1 < n_keys; ++last) {
    reached += static_cast<double>(weight[index_of(keys[last])]);
    if (!(reached < wanted)) break;
  }
  const size_t index = index_of(keys[last]);
  HWY_DYNAMIC_DISPATCH(mark)(weight, n, weight[index], index, marked);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
