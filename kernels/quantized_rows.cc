// See quantized_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Below it a block counts as zero: scales of rows times scales of weights have to be exact.
inline constexpr float kSmallest = 0x1p-80f;

inline constexpr int kMantissaBits = 23;
inline constexpr int kLevelBits = std::countr_zero(kScaleLevels);
inline constexpr int kBelowLevel = kMantissaBits - kLevelBits;

// The least scales that are not below `least` and have a level.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V scale_with_level(D d, V least) {
  const hn::RebindToUnsigned<D> du;
  constexpr uint32_t kRest = (1u << kBelowLevel) - 1;
  const auto above = hn::Add(hn::BitCast(du, least), hn::Set(du, kRest));
  return hn::BitCast(d, hn::AndNot(hn::Set(du, kRest), above));
}

// Rounds x * inverse, which has to be finite, to q. The lanes of the result add up to the sum of
// q's first half and, 16 bits above it, that of its second: a sum of 16 steps has 12 bits.
HWY_INLINE VecI round_block(const float* HWY_RESTRICT x, float inverse, int8_t* HWY_RESTRICT q) {
  const Tag d;
  const TagI di;
  const hn::Rebind<int8_t, Tag> d8;
  VecI total[2] = {hn::Zero(di), hn::Zero(di)};
  for (size_t i = 0; i < kQuantizedInputs; i += kOutputs) {
    const auto steps = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    total[i / 16] = hn::Add(total[i / 16], steps);
    hn::StoreU(hn::DemoteTo(d8, steps), d8, q + i);
  }
  return hn::Add(total[0], hn::ShiftLeft<16>(total[1]));
}

// Magnitudes are in the order of their bits, and what is not finite is above all of them.
inline constexpr int32_t kInfinity = 0x7F800000;
HWY_INLINE VecI largest_of(const float* x) {
  const Tag d;
  const TagI di;
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kQuantizedInputs; i += kOutputs)
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
  return largest;
}

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ------------------------------------------------------------------ one row

// Without the numbers that products of unpacked panels read.
HWY_INLINE void quantize_block(const float* HWY_RESTRICT x, const QuantizedBlock& out) {
  const TagI di;
  const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, largest_of(x)));
  const bool finite = bits < kInfinity;
  const auto max = std::bit_cast<float>(bits);
  const bool zero = !finite || max < kSmallest;
  const hn::CappedTag<float, 1> d1;
  const float scale = zero ? 0.0f : hn::GetLane(scale_with_level(d1, hn::Set(d1, max / 127.0f)));
  int32_t both = 0;
  if (finite) {
    both = hn::GetLane(hn::SumOfLanes(di, round_block(x, zero ? 0.0f : 1.0f / scale, out.q)));
  } else {  // conversions of NaN are no numbers to sum up
    std::memset(out.q, 0, kQuantizedInputs);
  }
  const int32_t first = static_cast<int16_t>(both & 0xFFFF), second = (both - first) >> 16;
  *out.scale = finite ? scale : kNan;
  *out.scaled_sum = finite ? scale * static_cast<float>(first + second) : kNan;
  *out.minus_sum = -kSumFactor * (first + second);
  out.minus_half_sum[0] = -kHalfSumFactor * first;
  out.minus_half_sum[1] = -kHalfSumFactor * second;
}

// ------------------------------------------------------------------ rows in lanes

// What is said of rows is said of lanes.
inline constexpr size_t kRows = kLanes;

// 1.5 * 2^(23 + e - kOriginShift) of scales of 2^e or more.
HWY_INLINE VecF origin_of(VecF scale) {
  const Tag d;
  const TagI di;
  const auto power = hn::Add(hn::ShiftRight<kMantissaBits>(hn::BitCast(di, scale)),
                             hn::Set(di, kMantissaBits - kOriginShift));
  const auto half = hn::Set(di, 1 << (kMantissaBits - 1));
  return hn::BitCast(d, hn::Or(hn::ShiftLeft<kMantissaBits>(power), half));
}

// Lane r: the lanes of the r-th of `of_rows`, of n_rows, combined by fn(VecI, VecI).
template <class Count, class Fn>
HWY_INLINE VecI across(const VecI* of_rows, Count n_rows, const Fn& fn) {
  const F32 d;
  const TagI di;
  VecF32 v[kRows];
  HWY_UNROLL(16) for (size_t r = 0; r < kRows; ++r) {
    v[r] = r < n_rows ? hn::BitCast(d, of_rows[r]) : hn::Zero(d);
  }
  HWY_ALIGN float lanes[kRows];
  reduce_lanes(v, lanes, [&](VecF32 a, VecF32 b) HWY_ATTR {
    return hn::BitCast(d, fn(hn::BitCast(di, a), hn::BitCast(di, b)));
  });
  return hn::BitCast(di, hn::Load(d, lanes));
}

// The numbers of n_rows rows, one or two of each.
template <class D>
HWY_INLINE void store_some(D d, hn::Vec<D> v, size_t n_rows, hn::TFromD<D>* to) {
  if (n_rows == kRows) return hn::StoreU(v, d, to);
  HWY_ALIGN hn::TFromD<D> all[kRows];
  hn::Store(v, d, all);
  std::memcpy(to, all, n_rows * sizeof all[0]);
}
HWY_INLINE void store_pairs(VecI first, VecI second, size_t n_rows, int32_t* to) {
  HWY_ALIGN int32_t all[2 * kRows];
  hn::StoreInterleaved2(first, second, TagI(), all);
  std::memcpy(to, all, 2 * n_rows * sizeof all[0]);
}

// n_rows rows, up to kRows: the numbers of a row alone would take as long as its q.
template <class Count>
HWY_INLINE void quantize_blocks(const float* HWY_RESTRICT x, size_t x_stride, Count n_rows,
                                const QuantizedBlock& out) {
  const Tag d;
  const TagI di;
  VecI of_rows[kRows];
  for (size_t r = 0; r < n_rows; ++r) of_rows[r] = largest_of(x + r * x_stride);
  const VecI largest =
      across(of_rows, n_rows, [](VecI a, VecI b) HWY_ATTR { return hn::Max(a, b); });
  const VecF max = hn::BitCast(d, largest);
  const auto finite = hn::RebindMask(d, hn::Lt(largest, hn::Set(di, kInfinity)));
  const auto has_scale = hn::And(finite, hn::Ge(max, hn::Set(d, kSmallest)));
  const VecF scale =
      hn::IfThenElseZero(has_scale, scale_with_level(d, hn::Div(max, hn::Set(d, 127.0f))));
  HWY_ALIGN float inverse[kRows];
  HWY_ALIGN int32_t bits[kRows];
  hn::Store(hn::IfThenElseZero(has_scale, hn::Div(hn::Set(d, 1.0f), scale)), d, inverse);
  hn::Store(largest, di, bits);
  for (size_t r = 0; r < n_rows; ++r) {
    int8_t* q = out.q + r * kQuantizedInputs;
    if (bits[r] < kInfinity) {
      of_rows[r] = round_block(x + r * x_stride, inverse[r], q);
    } else {
      of_rows[r] = hn::Zero(di);
      std::memset(q, 0, kQuantizedInputs);
    }
  }
  const VecI both = across(of_rows, n_rows, [](VecI a, VecI b) HWY_ATTR { return hn::Add(a, b); });
  const VecI first = hn::ShiftRight<16>(hn::ShiftLeft<16>(both));
  const VecI second = hn::ShiftRight<16>(hn::Sub(both, first)), all = hn::Add(first, second);
  const auto times = [&](VecI sum, int32_t factor)
                         HWY_ATTR { return hn::Mul(sum, hn::Set(di, factor)); };
  const auto or_nan = [&](VecF v) HWY_ATTR { return hn::IfThenElse(finite, v, hn::Set(d, kNan)); };
  store_some(d, or_nan(scale), n_rows, out.scale);
  store_some(d, or_nan(hn::Mul(scale, hn::ConvertTo(d, all))), n_rows, out.scaled_sum);
  store_some(di, times(all, -kSumFactor), n_rows, out.minus_sum);
  store_pairs(times(first, -kHalfSumFactor), times(second, -kHalfSumFactor), n_rows,
              out.minus_half_sum);
  const VecF origin = or_nan(origin_of(scale));
  const VecI begin = hn::BitCast(di, origin);
  const auto begin_at = [&](VecI sum)
                            HWY_ATTR { return hn::Sub(begin, times(sum, kUnpackedOffset)); };
  const auto level = hn::ShiftRight<kBelowLevel>(hn::BitCast(di, scale));
  store_some(d, origin, n_rows, out.origin);
  store_some(di, hn::And(level, hn::Set(di, kScaleLevels - 1)), n_rows, out.level);
  store_some(di, begin_at(all), n_rows, out.begin);
  store_pairs(begin_at(first), begin_at(second), n_rows, out.half_begin);
}

// ------------------------------------------------------------------ all rows

// Rows of one group; of kQuantizedGroup rows where there are many.
template <bool kMany>
void quantize_group(const float* x, size_t x_stride, size_t n_rows, size_t n, QuantizedBlock block,
                    size_t group) {
  constexpr size_t kAll = std::min(kRows, kQuantizedGroup);
  const std::integral_constant<size_t, kAll> all;
  for (size_t k = 0; k < n; k += kQuantizedInputs, block.advance(group), x += kQuantizedInputs) {
    size_t r = 0;
    if constexpr (kMany) {
      for (; r + kAll <= n_rows; r += kAll)
        quantize_blocks(x + r * x_stride, x_stride, all, block.row(r));
      if (r < n_rows) quantize_blocks(x + r * x_stride, x_stride, n_rows - r, block.row(r));
    } else {
      for (; r < n_rows; ++r) quantize_block(x + r * x_stride, block.row(r));
    }
  }
}

// fn(row, n_rows, quantize_group<>) for rows that share a group, as their rests do from `rest` on.
template <class Fn>
void for_groups(size_t begin, size_t end, const QuantizedRows& rows, size_t rest, const Fn& fn) {
  const size_t group = rows.group;
  const auto quantize = group == kQuantizedGroup ? quantize_group<true> : quantize_group<false>;
  for (size_t row = begin, n; row < end; row += n) {
    n = std::min({end - row, group - row % group, group - (rest + row) % group});
    fn(row, n, quantize);
  }
}

void quantize_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t from, size_t n,
                   size_t n_in, const QuantizedRows& out) {
  for_groups(begin, end, out, 0, [&](size_t row, size_t n_rows, auto quantize) {
    quantize(x + (row - begin) * x_stride, x_stride, n_rows, n,
             out.block(row, from / kQuantizedInputs, n_in), out.group);
  });
}

void quantize_rest(const float* x, size_t x_stride, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& rows, size_t rest) {
  const Tag d;
  const TagI di;
  const hn::Rebind<int8_t, Tag> d8;
  for_groups(begin, end, rows, rest, [&](size_t row, size_t n_rows, auto quantize) HWY_ATTR {
    QuantizedBlock block = rows.block(row, 0, n_in), of_rest = rows.block(rest + row, 0, n_in);
    for (size_t k = 0; k < n_in; k += kQuantizedInputs) {
      HWY_ALIGN float left[kQuantizedGroup * kQuantizedInputs];
      for (size_t r = 0; r < n_rows; ++r) {
        const float* of_row = x + (row + r - begin) * x_stride + k;
        const auto scale = hn::Set(d, block.scale[r]);
        for (size_t i = 0; i < kQuantizedInputs; i += kOutputs) {
          const auto q = hn::LoadU(d8, block.q + r * kQuantizedInputs + i);
          const auto steps = hn::ConvertTo(d, hn::PromoteTo(di, q));
          hn::Store(hn::NegMulAdd(scale, steps, hn::LoadU(d, of_row + i)), d,
                    left + r * kQuantizedInputs + i);
        }
      }
      quantize(left, kQuantizedInputs, n_rows, kQuantizedInputs, of_rest, rows.group);
      block.advance(rows.group);
      of_rest.advance(rows.group);
    }
  });
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(quantize_rows);
HWY_EXPORT(quantize_rest);

void quantize_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t from, size_t n,
                   size_t n_in, const QuantizedRows& out) {
  HWY_DYNAMIC_DISPATCH(quantize_rows)(x, x_stride, begin, end, from, n, n_in, out);
}

void quantize_rest(const float* x, size_t x_stride, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& rows, size_t rest) {
  HWY_DYNAMIC_DISPATCH(quantize_rest)(x, x_stride, begin, end, n_in, rows, rest);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
