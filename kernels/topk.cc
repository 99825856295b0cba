// Top-k by partition of 64-bit keys that carry score and index. Many scores are divided into
// groups: the k-th best of their maxima is at most the k-th best of all scores, for k groups hold
// one as good. What lies below is left out in SIMD, and the partition takes the rest.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/topk.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/compress-inl.h"

#ifndef KVASIR_KERNELS_TOPK_ONCE
#define KVASIR_KERNELS_TOPK_ONCE
namespace kvasir::kernels {

// The float's bits made monotonic; NaN: below -inf, whose pattern is 0x007fffff.
inline uint32_t order_of(float score) {
  if (score != score) return 0;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The score of an order, NaN for 0.
inline float score_of(uint32_t order) {
  if (order == 0) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Orders like (score, then lower index).
inline uint64_t top_k_key(float score, size_t index) {
  return uint64_t{order_of(score)} << 32 | (UINT32_MAX - static_cast<uint32_t>(index));
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_TOPK_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// fn(i) for every score of at least `low`, ascending.
template <class Fn>
HWY_INLINE void for_each_from(float low, const float* score, size_t n, const Fn& fn) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto hit = hn::Ge(hn::LoadU(d, score + i), hn::Set(d, low));
    if (hn::AllFalse(d, hit)) continue;
    uint64_t bits = 0;  // lane 0 lowest; 64 lanes at the most
    hn::StoreMaskBits(d, hit, reinterpret_cast<uint8_t*>(&bits));
    for (; bits != 0; bits &= bits - 1) fn(i + static_cast<size_t>(std::countr_zero(bits)));
  }
  for (; i < n; ++i)
    if (score[i] >= low) fn(i);
}

size_t keys_from(float low, const float* score, size_t n, uint64_t* keys) {
  size_t count = 0;
  for_each_from(low, score, n, [&](size_t i) { keys[count++] = top_k_key(score[i], i); });
  return count;
}

// Indices of the scores from `low` on whose key is `least` or more.
size_t list_keys_from(float low, uint64_t least, const float* score, size_t n, uint32_t* index) {
  size_t count = 0;
  for_each_from(low, score, n, [&](size_t i) {
    if (top_k_key(score[i], i) >= least) index[count++] = static_cast<uint32_t>(i);
  });
  return count;
}

// Without a branch on a score: where many are listed, which ones is hard to foresee.
size_t list_from(float low, const float* score, size_t n, uint32_t* index) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0, count = 0;
  auto here = hn::Iota(du, 0);
  const auto step = hn::Set(du, static_cast<uint32_t>(lanes));
  for (; i + lanes <= n; i += lanes, here = hn::Add(here, step)) {
    const auto hit = hn::RebindMask(du, hn::Ge(hn::LoadU(d, score + i), hn::Set(d, low)));
    hn::StoreU(compress(here, hit), du, index + count);  // up to index + i + lanes
    count += hn::CountTrue(du, hit);
  }
  for (; i < n; ++i)
    if (score[i] >= low) index[count++] = static_cast<uint32_t>(i);
  return count;
}

// most[g] = the largest of scores g, g + n_groups, ... of the whole rounds among them. A NaN is
// passed over, or makes the maximum one: either way no score is left out for it.
//   n_groups: a multiple of 16
void maxima_of(const float* score, size_t n, size_t n_groups, float* most) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  std::copy_n(score, n_groups, most);
  for (size_t begin = n_groups; begin + n_groups <= n; begin += n_groups)
    for (size_t g = 0; g < n_groups; g += lanes)
      hn::StoreU(hn::Max(hn::LoadU(d, score + begin + g), hn::LoadU(d, most + g)), d, most + g);
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(keys_from);
HWY_EXPORT(list_from);
HWY_EXPORT(list_keys_from);
HWY_EXPORT(maxima_of);

namespace {

// Scores per group, at least; with fewer of them all are partitioned at once.
constexpr size_t kLeastInGroup = 4;
constexpr size_t kLeastGroups = 128, kMostGroups = 4096;
// Where fewer than one of so many are taken, sorting them takes less time than a walk over all.
constexpr size_t kFewOf = 16;

// A score that the k-th best of n does not lie below; NaN: unknown. With twice as many groups as
// are taken, about 1.4 k scores of those in any order lie above.
float floor_of(const float* score, size_t n, size_t k) {
  const size_t n_groups = std::max(kLeastGroups, (2 * k + 15) / 16 * 16);
  if (n_groups > kMostGroups || n < kLeastInGroup * n_groups)
    return std::numeric_limits<float>::quiet_NaN();
  std::array<float, kMostGroups> most;
  HWY_DYNAMIC_DISPATCH(maxima_of)(score, n, n_groups, most.data());
  std::array<uint32_t, kMostGroups> order;
  std::transform(most.begin(), most.begin() + n_groups, order.begin(), order_of);
  const auto at = order.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(order.begin(), at, order.begin() + static_cast<std::ptrdiff_t>(n_groups),
                   std::greater<>());
  return score_of(*at);
}

void partition(uint64_t* keys, size_t n, size_t k) {
  if (k < n) std::nth_element(keys, keys + k - 1, keys + n, std::greater<>());
}

}  // namespace

size_t top_k_scratch_bytes(size_t n) { return n * sizeof(uint64_t); }

size_t top_k(const float* score, size_t n, size_t k, uint32_t* index, void* scratch) {
  auto* keys = static_cast<uint64_t*>(scratch);
  const size_t count = std::min(k, n);
  if (count == 0) return 0;
  if (const float low = floor_of(score, n, count); low == low) {
    const size_t n_keys = HWY_DYNAMIC_DISPATCH(keys_from)(low, score, n, keys);
    if (n_keys >= count) {  // fewer: there are NaNs
      partition(keys, n_keys, count);
      const uint64_t least = *std::min_element(keys, keys + count);  // no two keys are equal
      return HWY_DYNAMIC_DISPATCH(list_keys_from)(low, least, score, n, index);
    }
  }
  for (size_t i = 0; i < n; ++i) keys[i] = top_k_key(score[i], i);
  partition(keys, n, count);
  if (count < n / kFewOf) {
    for (size_t i = 0; i < count; ++i) index[i] = UINT32_MAX - static_cast<uint32_t>(keys[i]);
    std::sort(index, index + count);
    return count;
  }
  const uint64_t least = *std::min_element(keys, keys + count);
  for (size_t i = 0, at = 0; at < count; ++i) {
    if (top_k_key(score[i], i) >= least) index[at++] = static_cast<uint32_t>(i);
  }
  return count;
}

size_t list_from(const float* score, size_t n, float low, uint32_t* index) {
  return HWY_DYNAMIC_DISPATCH(list_from)(low, score, n, index);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
