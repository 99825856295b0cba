// See quantized_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cstring>
#include <limits>

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

// The least scale that is not below `least` and has a level.
float scale_with_level(float least) {
  constexpr uint32_t kRest = (1u << kBelowLevel) - 1;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(least) + kRest) & ~kRest);
}

// 1.5 * 2^(23 + e - kOriginShift) of a scale of 2^e or more.
float origin_of(float scale) {
  const uint32_t power = std::bit_cast<uint32_t>(scale) >> kMantissaBits;
  return std::bit_cast<float>((power + kMantissaBits - kOriginShift) << kMantissaBits |
                              1u << (kMantissaBits - 1));
}

// kMany: with the numbers that products of unpacked panels read.
template <bool kMany>
void quantize_block(const float* HWY_RESTRICT x, const QuantizedBlock& out) {
  const Tag d;
  const TagI di;
  const hn::RebindToUnsigned<Tag> du;
  const hn::Rebind<int8_t, Tag> d8;
  // Magnitudes are in the order of their bits, and what is not finite is above all of them.
  constexpr uint32_t kInfinity = 0x7F800000;
  auto largest = hn::Zero(du);
  for (size_t i = 0; i < kQuantizedInputs; i += kOutputs)
    largest = hn::Max(largest, hn::BitCast(du, hn::Abs(hn::LoadU(d, x + i))));
  const uint32_t bits = hn::GetLane(hn::MaxOfLanes(du, largest));
  const bool finite = bits < kInfinity;
  const auto max = std::bit_cast<float>(bits);
  const bool zero = !finite || max < kSmallest;
  const float scale = zero ? 0.0f : scale_with_level(max / 127.0f);
  const auto inverse = hn::Set(d, zero ? 0.0f : 1.0f / scale);
  VecI total[2] = {hn::Zero(di), hn::Zero(di)};
  if (finite) {
    for (size_t i = 0; i < kQuantizedInputs; i += kOutputs) {
      const auto steps = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
      total[i / 16] = hn::Add(total[i / 16], steps);
      hn::StoreU(hn::DemoteTo(d8, steps), d8, out.q + i);
    }
  } else {  // conversions of NaN are no numbers to sum up
    std::memset(out.q, 0, kQuantizedInputs);
  }
  // Both halves across the lanes at once: a sum of 16 steps has 12 bits.
  const int32_t both =
      hn::GetLane(hn::SumOfLanes(di, hn::Add(total[0], hn::ShiftLeft<16>(total[1]))));
  const int32_t first = static_cast<int16_t>(both & 0xFFFF), second = (both - first) >> 16;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  *out.scale = finite ? scale : kNan;
  *out.scaled_sum = finite ? scale * static_cast<float>(first + second) : kNan;
  *out.minus_sum = -kSumFactor * (first + second);
  out.minus_half_sum[0] = -kHalfSumFactor * first;
  out.minus_half_sum[1] = -kHalfSumFactor * second;
  if (!kMany) return;
  const float origin = finite ? origin_of(scale) : kNan;
  const auto begin = std::bit_cast<int32_t>(origin);
  *out.origin = origin;
  *out.level = std::bit_cast<int32_t>(scale) >> kBelowLevel & (kScaleLevels - 1);
  *out.begin = begin - kUnpackedOffset * (first + second);
  out.half_begin[0] = begin - kUnpackedOffset * first;
  out.half_begin[1] = begin - kUnpackedOffset * second;
}

template <bool kMany>
void quantize(const float* x, size_t x_stride, size_t begin, size_t end, size_t from, size_t n,
              size_t n_in, const QuantizedRows& out) {
  for (size_t row = begin; row < end; ++row, x += x_stride) {
    QuantizedBlock block = out.block(row, from / kQuantizedInputs, n_in);
    for (size_t k = 0; k < n; k += kQuantizedInputs, block.advance(out.group))
      quantize_block<kMany>(x + k, block);
  }
}

auto quantize_of(const QuantizedRows& rows) {
  return rows.group == kQuantizedGroup ? quantize<true> : quantize<false>;
}

void quantize_rows(const float* x, size_t x_stride, size_t begin, size_t end, size_t from, size_t n,
                   size_t n_in, const QuantizedRows& out) {
  quantize_of(out)(x, x_stride, begin, end, from, n, n_in, out);
}

void quantize_rest(const float* x, size_t x_stride, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& rows, size_t rest) {
  const Tag d;
  const TagI di;
  const hn::Rebind<int8_t, Tag> d8;
  const auto round = quantize_of(rows);
  for (size_t row = begin; row < end; ++row, x += x_stride) {
    QuantizedBlock block = rows.block(row, 0, n_in);
    for (size_t k = 0; k < n_in; k += kQuantizedInputs, block.advance(rows.group)) {
      HWY_ALIGN float left[kQuantizedInputs];
      const auto scale = hn::Set(d, *block.scale);
      for (size_t i = 0; i < kQuantizedInputs; i += kOutputs) {
        const auto steps = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, block.q + i)));
        hn::Store(hn::NegMulAdd(scale, steps, hn::LoadU(d, x + k + i)), d, left + i);
      }
      round(left, 0, rest + row, rest + row + 1, k, kQuantizedInputs, n_in, rows);
    }
  }
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
