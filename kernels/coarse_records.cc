// Coarse copies: [low, step] in f32 per element, then for each pair of elements one byte per
// record, so that whole vectors of records are scored without adding up across lanes.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/coarse_records.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coarse_records.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_COARSE_RECORDS_ONCE
#define KVASIR_KERNELS_COARSE_RECORDS_ONCE
namespace kvasir::kernels {

constexpr float kCoarseSteps = 16.0f;
constexpr size_t kCacheLine = 64;

// Elements as they are stored: whole vectors.
inline size_t coarse_width(size_t width) { return (width + 15) / 16 * 16; }

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_COARSE_RECORDS_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;

// Elements of a row of `width` from `column` on, zeros behind its end.
template <class T>
HWY_INLINE VecF32 load_within(const T* row, size_t column, size_t width) {
  const F32 d;
  if (column + kLanes <= width) return load_at(d, row, column);
  return column < width ? load_tail_at(d, row, column, width - column) : hn::Zero(d);
}

template <class T>
HWY_INLINE VecF32 elements(const Records& records, size_t b, size_t column, size_t width) {
  return load_within(static_cast<const T*>(records.record(b)), column, width);
}

// The range of one vector of elements over all records, and its 16th; false: not finite.
template <class T>
bool range_of(const Records& records, size_t column, size_t width, float* low, float* step) {
  const F32 d;
  VecF32 least = elements<T>(records, 0, column, width), most = least, poison = hn::Zero(d);
  for (size_t b = 0; b < records.n; ++b) {
    const VecF32 x = elements<T>(records, b, column, width);
    least = hn::Min(least, x);
    most = hn::Max(most, x);
    poison = hn::MulAdd(hn::Zero(d), x, poison);
  }
  const VecF32 range = hn::Sub(most, least);
  poison = hn::MulAdd(hn::Zero(d), range, poison);
  hn::StoreU(least, d, low + column);
  hn::StoreU(hn::Mul(range, hn::Set(d, 1.0f / kCoarseSteps)), d, step + column);
  return hn::AllTrue(d, hn::Eq(poison, hn::Zero(d)));
}

// Codes of one vector of elements, for two elements of a record in one byte.
template <class T>
void code_column(const Records& records, size_t column, size_t width, const float* low,
                 const float* step, uint8_t* pairs) {
  constexpr size_t kTogether = 16;
  const F32 d;
  const I32 di;
  const hn::Rebind<uint8_t, F32> d8;
  HWY_ALIGN uint8_t codes[kTogether * kLanes];
  const VecF32 from = hn::LoadU(d, low + column), each = hn::LoadU(d, step + column);
  // One code where all values are equal, or so close that their distance has no inverse.
  const auto differ = hn::Ge(each, hn::Set(d, std::numeric_limits<float>::min()));
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 inverse =
      hn::IfThenElseZero(differ, hn::Div(one, hn::IfThenElse(differ, each, one)));
  for (size_t begin = 0; begin < records.n; begin += kTogether) {
    for (size_t b = 0; b < kTogether; ++b) {
      const VecF32 x = elements<T>(records, begin + b, column, width);
      const VecF32 code =
          hn::Min(hn::Mul(hn::Sub(x, from), inverse), hn::Set(d, kCoarseSteps - 1.0f));
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, code)), d8, codes + b * kLanes);
    }
    for (size_t i = 0; i < kLanes; ++i) {
      const size_t element = column + i;
      uint8_t* to = pairs + element / 2 * records.n + begin;
      for (size_t b = 0; b < kTogether; ++b) {
        const uint8_t code = codes[b * kLanes + i];
        to[b] = element % 2 == 0 ? code : static_cast<uint8_t>(to[b] | code << 4);
      }
    }
  }
}

bool code_records(const Records& records, size_t width, float* low, float* step, uint8_t* pairs) {
  bool is_finite = true;
  with_row_type(records.type, [&]<class T>(T) {
    for (size_t c = 0; c < coarse_width(width) && is_finite; c += kLanes) {
      is_finite = range_of<T>(records, c, width, low, step);
      if (is_finite) code_column<T>(records, c, width, low, step, pairs);
    }
  });
  return is_finite;
}

// What the bounds of all records share, and the weights of the codes; returns the scale of those.
//   scaled [coarse_width(width)]
float weigh(const float* weight, size_t width, const float* low, const float* step, float* scaled,
            float* shared) {
  const F32 d;
  VecF32 sum = hn::Zero(d), size = hn::Zero(d), largest = hn::Zero(d);
  for (size_t c = 0; c < coarse_width(width); c += kLanes) {
    const VecF32 w = load_within(weight, c, width);
    const VecF32 from = hn::LoadU(d, low + c), each = hn::LoadU(d, step + c);
    const VecF32 of_step = hn::Mul(w, each);
    sum = hn::Add(hn::MulAdd(w, from, sum), hn::Max(of_step, hn::Zero(d)));
    const VecF32 to = hn::MulAdd(each, hn::Set(d, kCoarseSteps), from);
    const VecF32 reach = hn::Max(hn::Max(hn::Abs(from), hn::Abs(to)), hn::Set(d, 1e-30f));
    size = hn::MulAdd(hn::Abs(w), reach, size);
    largest = hn::Max(largest, hn::Abs(of_step));
    hn::StoreU(of_step, d, scaled + c);
  }
  // Codes and sums in f32, of the bound and of the score, are off by less than this.
  const float error = static_cast<float>(width + 64) * 0x1p-23f;
  *shared = hn::GetLane(hn::SumOfLanes(d, sum)) + error * hn::GetLane(hn::SumOfLanes(d, size));
  return hn::GetLane(hn::MaxOfLanes(d, largest)) / 32767.0f;
}

// Two weights beside each other, rounded up, as the codes of a pair are multiplied.
void round_up(const float* scaled, size_t width, float scale, int16_t* rounded) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int16_t, F32> d16;
  const VecF32 inverse = hn::Set(d, scale > 0.0f ? 1.0f / scale : 0.0f);
  for (size_t c = 0; c < coarse_width(width); c += kLanes) {
    const VecF32 steps = hn::Ceil(hn::Mul(hn::LoadU(d, scaled + c), inverse));
    const VecF32 kept = hn::Max(hn::Set(d, -32767.0f), hn::Min(steps, hn::Set(d, 32767.0f)));
    hn::StoreU(hn::DemoteTo(d16, hn::ConvertTo(di, kept)), d16, rounded + c);
  }
}

// sum + the products of both codes of each byte with their weights.
HWY_INLINE hn::Vec<I32> add_products(hn::Vec<U32> byte, const int16_t* weights, hn::Vec<I32> sum) {
  const I32 di;
  const U32 du;
#if HWY_TARGET == HWY_SCALAR
  const auto first = hn::BitCast(di, hn::And(byte, hn::Set(du, 15u)));
  const auto second = hn::BitCast(di, hn::ShiftRight<4>(byte));
  sum = hn::Add(sum, hn::Mul(first, hn::Set(di, weights[0])));
  return hn::Add(sum, hn::Mul(second, hn::Set(di, weights[1])));
#else
  const hn::Repartition<int16_t, F32> d16;
  int32_t both;
  std::memcpy(&both, weights, sizeof both);
  const auto first = hn::And(byte, hn::Set(du, 0x0fu));
  const auto second = hn::And(hn::ShiftLeft<12>(byte), hn::Set(du, 0xf0000u));
  auto other = hn::Zero(di);
  sum = hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, hn::Or(first, second)),
                                      hn::BitCast(d16, hn::Set(di, both)), sum, other);
  return hn::Add(sum, other);
#endif
}

// bound[b] = shared + scale * sum of weight * code, for kVectors vectors of records.
template <size_t kVectors>
HWY_INLINE void bound_vectors(const int16_t* rounded, size_t n_pairs, const uint8_t* pairs,
                              size_t stride, const uint8_t* next, float shared, float scale,
                              float* bound) {
  const F32 d;
  const I32 di;
  const hn::Rebind<uint8_t, F32> d8;
  hn::Vec<I32> sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(di);
  for (size_t p = 0; p < n_pairs; ++p) {
    if (next) __builtin_prefetch(next + p * kCacheLine);
    for (size_t v = 0; v < kVectors; ++v) {
      const auto byte = hn::PromoteTo(U32(), hn::LoadU(d8, pairs + p * stride + v * kLanes));
      sum[v] = add_products(byte, rounded + 2 * p, sum[v]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v)
    hn::StoreU(hn::MulAdd(hn::ConvertTo(d, sum[v]), hn::Set(d, scale), hn::Set(d, shared)), d,
               bound + v * kLanes);
}

void bound_records(const float* weight, size_t width, const float* low, const float* step,
                   const uint8_t* pairs, const uint8_t* next, size_t n, float* bound,
                   float* scaled) {
  auto* rounded = reinterpret_cast<int16_t*>(scaled + coarse_width(width));
  float shared = 0.0f;
  const float scale = weigh(weight, width, low, step, scaled, &shared);
  round_up(scaled, width, scale, rounded);
  const size_t n_pairs = (width + 1) / 2;
  size_t b = 0;
  for (; b + 4 * kLanes <= n; b += 4 * kLanes)
    bound_vectors<4>(rounded, n_pairs, pairs + b, n, next ? next + b * n_pairs : nullptr, shared,
                     scale, bound + b);
  for (; b < n; b += kLanes)
    bound_vectors<1>(rounded, n_pairs, pairs + b, n, nullptr, shared, scale, bound + b);
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(code_records);
HWY_EXPORT(bound_records);

namespace {

struct Parts {
  size_t step, pairs;  // where they begin, in bytes
};

Parts parts_of(size_t width) {
  const size_t floats = coarse_width(width) * sizeof(float);
  return {floats, 2 * floats};
}

}  // namespace

size_t coarse_bytes(size_t n, size_t width) {
  return parts_of(width).pairs + coarse_width(width) / 2 * n;
}

size_t coarse_scratch_bytes(size_t width) {
  return coarse_width(width) * (sizeof(float) + sizeof(int16_t));
}

bool make_coarse(const Records& records, size_t width, void* coarse) {
  auto* base = static_cast<uint8_t*>(coarse);
  const Parts at = parts_of(width);
  return HWY_DYNAMIC_DISPATCH(code_records)(records, width, reinterpret_cast<float*>(base),
                                            reinterpret_cast<float*>(base + at.step),
                                            base + at.pairs);
}

void bound_coarse(const float* weight, size_t width, const void* coarse, const void* next, size_t n,
                  float* bound, void* scratch) {
  const auto* base = static_cast<const uint8_t*>(coarse);
  const Parts at = parts_of(width);
  HWY_DYNAMIC_DISPATCH(bound_records)
  (weight, width, reinterpret_cast<const float*>(base),
   reinterpret_cast<const float*>(base + at.step), base + at.pairs,
   static_cast<const uint8_t*>(next), n, bound, static_cast<float*>(scratch));
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
