// Coarse copies: in f16, in units, the low ends of all elements and then their steps; a byte per
// record, its distance; then for each eight elements four bytes per record, so that whole vectors
// of records are scored without adding up across lanes: elements 0 to 3 in the lower halves of the
// bytes, 4 to 7 in the upper ones.
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

#include "kernels/narrow-inl.h"
#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_COARSE_RECORDS_ONCE
#define KVASIR_KERNELS_COARSE_RECORDS_ONCE
namespace kvasir::kernels {

constexpr float kCoarseSteps = 16.0f;
constexpr size_t kTogether = 8;  // elements of a record that lie in one word
constexpr size_t kCacheLine = 64;
constexpr float kDistanceSteps = 255.0f;  // of a byte
// The largest weight: 256 * upper + lower, both signed bytes.
constexpr float kMostWeight = 32639.0f;

// Elements as they are stored: whole vectors.
inline size_t coarse_width(size_t width) { return (width + 15) / 16 * 16; }
inline size_t coarse_words(size_t width) { return coarse_width(width) / kTogether; }

// The parts of a copy of n records. Byte: const or not.
template <class Byte>
struct CoarseParts {
  CoarseParts(Byte* copy, size_t n, size_t width)
      : low(copy),
        step(low + coarse_width(width) * sizeof(hwy::float16_t)),
        distance(step + coarse_width(width) * sizeof(hwy::float16_t)),
        words(distance + n) {}
  Byte *low, *step, *distance, *words;
};

// Of the bytes of distances, in steps: no element is more than half a step off.
inline float distance_step(size_t width) {
  return 0.5f * std::sqrt(static_cast<float>(width)) / kDistanceSteps;
}

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_COARSE_RECORDS_ONCE

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
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

// A unit in which all elements are below 2^15, so that f16 holds them; 0: one is not finite.
template <class T>
float unit_of(const Records& records, size_t width) {
  constexpr int kMostBits = 15, kLeastExponent = -100;  // the inverse has to be finite
  const F32 d;
  VecF32 most = hn::Zero(d), poison = hn::Zero(d);
  for (size_t b = 0; b < records.n; ++b)
    for (size_t c = 0; c < coarse_width(width); c += kLanes) {
      const VecF32 x = elements<T>(records, b, c, width);
      most = hn::Max(most, hn::Abs(x));
      poison = hn::MulAdd(hn::Zero(d), x, poison);
    }
  if (!hn::AllTrue(d, hn::Eq(poison, hn::Zero(d)))) return 0.0f;
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  if (largest == 0.0f) return 1.0f;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0f, std::max(exponent - kMostBits, kLeastExponent));
}

using Parts = CoarseParts<uint8_t>;

HWY_INLINE VecF32 load_f16(const uint8_t* row, size_t column) {
  return load_row(F32(), reinterpret_cast<const hwy::float16_t*>(row) + column);
}
// x in f16, or a number of f16 below it (sign = -1) or above it (sign = +1).
HWY_INLINE void store_outwards(VecF32 x, float sign, uint8_t* row, size_t column) {
  auto* to = reinterpret_cast<hwy::float16_t*>(row) + column;
  store_row(outwards(x, sign, to), to);
}

// The range of one vector of elements over all records, and its 16th; false: not finite.
template <class T>
bool range_of(const Records& records, size_t column, size_t width, float unit, const Parts& to) {
  const F32 d;
  VecF32 least = elements<T>(records, 0, column, width), most = least;
  for (size_t b = 1; b < records.n; ++b) {
    const VecF32 x = elements<T>(records, b, column, width);
    least = hn::Min(least, x);
    most = hn::Max(most, x);
  }
  const VecF32 range = hn::Mul(hn::Sub(most, least), hn::Zero(d));
  const VecF32 inverse = hn::Set(d, 1.0f / unit);
  store_outwards(hn::Mul(least, inverse), -1.0f, to.low, column);
  const VecF32 above = hn::Sub(hn::Mul(most, inverse), load_f16(to.low, column));
  store_outwards(hn::Mul(above, hn::Set(d, 1.0f / kCoarseSteps)), 1.0f, to.step, column);
  return hn::AllTrue(d, hn::Eq(range, hn::Zero(d)));
}

// One vector of elements of all records, in steps from the least.
template <class T>
class Column {
 public:
  Column(const Records& records, size_t column, size_t width, float unit, const Parts& parts)
      : records_(records), column_(column), width_(width) {
    const F32 d;
    const VecF32 each = load_f16(parts.step, column), one = hn::Set(d, 1.0f);
    // One code where all values are equal.
    const auto differ = hn::Gt(each, hn::Zero(d));
    low_ = load_f16(parts.low, column);
    inverse_ = hn::IfThenElseZero(differ, hn::Div(one, hn::IfThenElse(differ, each, one)));
    in_units_ = hn::Set(d, 1.0f / unit);
  }
  HWY_INLINE VecF32 steps(size_t record) const {
    const VecF32 x = hn::Mul(elements<T>(records_, record, column_, width_), in_units_);
    return hn::Mul(hn::Sub(x, low_), inverse_);
  }
  static HWY_INLINE VecF32 code(VecF32 steps) {  // not cut off to a whole number yet
    return hn::Min(steps, hn::Set(F32(), kCoarseSteps - 1.0f));
  }
  // From the middle of the step; 0 where there is one code.
  HWY_INLINE VecF32 off(size_t record) const {
    const F32 d;
    const VecF32 at = steps(record);
    const VecF32 middle = hn::Add(hn::Floor(code(at)), hn::Set(d, 0.5f));
    return hn::IfThenElseZero(hn::Gt(inverse_, hn::Zero(d)), hn::Sub(at, middle));
  }

 private:
  const Records& records_;
  size_t column_, width_;
  VecF32 low_, inverse_, in_units_;
};

// Codes of one vector of elements, into the words of the records.
template <class T>
void code_column(const Records& records, const Column<T>& elements, size_t column, uint8_t* words) {
  const I32 di;
  const hn::Rebind<uint8_t, F32> d8;
  HWY_ALIGN uint8_t codes[kLanes];
  for (size_t b = 0; b < records.n; ++b) {
    const VecF32 code = Column<T>::code(elements.steps(b));
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, code)), d8, codes);
    for (size_t i = 0; i < kLanes; ++i) {
      const size_t element = column + i, in_word = element % kTogether;
      uint8_t& to = words[(element / kTogether * records.n + b) * 4 + in_word % 4];
      to = in_word < 4 ? codes[i] : static_cast<uint8_t>(to | codes[i] << 4);
    }
  }
}

// Distances of records from the middles of their steps, rounded up.
template <class T>
void store_distances(const Records& records, size_t width, float unit, const Parts& parts) {
  const F32 d;
  for (size_t b = 0; b < records.n; ++b) {
    VecF32 squares = hn::Zero(d);
    for (size_t c = 0; c < coarse_width(width); c += kLanes) {
      const VecF32 off = Column<T>(records, c, width, unit, parts).off(b);
      squares = hn::MulAdd(off, off, squares);
    }
    const float distance = std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)));
    parts.distance[b] =
        static_cast<uint8_t>(std::min(kDistanceSteps, std::ceil(distance / distance_step(width))));
  }
}

bool code_records(const Records& records, size_t width, uint8_t* copy, float* unit) {
  const Parts parts(copy, records.n, width);
  bool is_finite = true;
  with_row_type(records.type, [&]<class T>(T) {
    *unit = unit_of<T>(records, width);
    is_finite = *unit != 0.0f;
    for (size_t c = 0; c < coarse_width(width) && is_finite; c += kLanes) {
      is_finite = range_of<T>(records, c, width, *unit, parts);
      if (is_finite)
        code_column<T>(records, Column<T>(records, c, width, *unit, parts), c, parts.words);
    }
    if (is_finite) store_distances<T>(records, width, *unit, parts);
  });
  return is_finite;
}

// What the bounds of all records share: one is sum + scale * the sum of rounded weight * code, plus
// the smaller one of half_steps and the record's byte of distance times per_distance.
struct Shared {
  float sum, scale, half_steps, per_distance;
};

// scaled [coarse_width(width)]: the weights of the codes, in units, as `scale` is.
Shared weigh(const float* weight, size_t width, const CoarseParts<const uint8_t>& parts, float unit,
             float* scaled) {
  const F32 d;
  VecF32 sum = hn::Zero(d), size = hn::Zero(d), largest = hn::Zero(d);
  VecF32 length = hn::Zero(d), squares = hn::Zero(d);
  for (size_t c = 0; c < coarse_width(width); c += kLanes) {
    const VecF32 w = load_within(weight, c, width);
    const VecF32 of_low = hn::Mul(w, load_f16(parts.low, c));
    const VecF32 of_step = hn::Mul(w, load_f16(parts.step, c));
    const VecF32 magnitude = hn::Abs(of_step);
    sum = hn::MulAdd(of_step, hn::Set(d, 0.5f), hn::Add(sum, of_low));  // of middles
    size = hn::Add(size, hn::Abs(of_low));
    length = hn::Add(length, magnitude);
    squares = hn::MulAdd(of_step, of_step, squares);
    largest = hn::Max(largest, magnitude);
    hn::StoreU(of_step, d, scaled + c);
  }
  // Codes and sums in f32, of the bound and of the score, are off by less than this share of the
  // magnitudes; where those are tiny, by less than kTiny, or kTiny units.
  const float error = static_cast<float>(width + 64) * 0x1p-23f;
  constexpr float kTiny = 0x1p-110f;
  size = hn::MulAdd(length, hn::Set(d, kCoarseSteps), size);
  sum = hn::MulAdd(size, hn::Set(d, error), sum);
  const float length_sum = hn::GetLane(hn::SumOfLanes(d, length));
  const float sum_of_squares = hn::GetLane(hn::SumOfLanes(d, squares));
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  Shared out;
  out.sum = hn::GetLane(hn::SumOfLanes(d, sum)) * unit + kTiny * std::max(unit, 1.0f);
  out.scale = most * (1.0f / kMostWeight);
  if (out.scale < kTiny) {  // no inverse: each code counts as the largest
    out.scale = 0.0f;
    out.sum += kCoarseSteps * length_sum * unit;
  }
  out.half_steps = 0.5f * length_sum * unit;
  // A record is half a step off in each element at most, and `distance` in all of them together.
  constexpr float kLeastSum = 1e-28f;  // squares that underflow are no part of smaller ones
  constexpr float kMost = std::numeric_limits<float>::max();
  out.per_distance = kMost;
  if (sum_of_squares >= kLeastSum && sum_of_squares <= kMost)
    out.per_distance = distance_step(width) * std::sqrt(sum_of_squares) * unit;
  return out;
}

// Weights rounded up, 256 * upper + lower, in the order of the elements.
struct Weights {
  int8_t *upper, *lower;  // [coarse_width(width)]
};
void round_up(const float* scaled, size_t width, float scale, const Weights& rounded) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, F32> d8;
  const VecF32 inverse = hn::Set(d, scale > 0.0f ? 1.0f / scale : 0.0f);
  for (size_t c = 0; c < coarse_width(width); c += kLanes) {
    const VecF32 steps = hn::Ceil(hn::Mul(hn::LoadU(d, scaled + c), inverse));
    const auto kept = hn::ConvertTo(
        di, hn::Max(hn::Set(d, -kMostWeight), hn::Min(steps, hn::Set(d, kMostWeight))));
    const auto lower = hn::ShiftRight<24>(hn::ShiftLeft<24>(kept));
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<8>(hn::Sub(kept, lower))), d8, rounded.upper + c);
    hn::StoreU(hn::DemoteTo(d8, lower), d8, rounded.lower + c);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

using VecI32 = hn::Vec<I32>;

// Adds to each lane the products of its four codes with four weights, of codes in the lower and in
// the upper halves of bytes.
HWY_INLINE VecI32 add_products(VecI32 sum, VecI32 low, VecI32 of_low, VecI32 high, VecI32 of_high) {
#if KVASIR_QUAD_DOT
  return VecI32{_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum.raw, low.raw, of_low.raw), high.raw,
                                    of_high.raw)};
#elif HWY_TARGET <= HWY_AVX3
  // Four products of at most 15 * 128 fit 16 bits.
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(low.raw, of_low.raw),
                                         _mm512_maddubs_epi16(high.raw, of_high.raw));
  return VecI32{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#else
  const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low.raw, of_low.raw),
                                         _mm256_maddubs_epi16(high.raw, of_high.raw));
  return VecI32{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#endif
}

// Four weights in every lane.
HWY_INLINE VecI32 four(const int8_t* weights) {
  int32_t word;
  std::memcpy(&word, weights, sizeof word);
  return hn::Set(I32(), word);
}

// The part of bounds that does not depend on codes, of a vector of records.
HWY_INLINE VecF32 beside_codes(const Shared& s, const uint8_t* distance) {
  const F32 d;
  const hn::Rebind<uint8_t, F32> d8;
  const VecF32 bytes = hn::ConvertTo(d, hn::PromoteTo(I32(), hn::LoadU(d8, distance)));
  const VecF32 off = hn::Mul(bytes, hn::Set(d, s.per_distance));
  return hn::Add(hn::Set(d, s.sum), hn::Min(off, hn::Set(d, s.half_steps)));
}

// Bounds of kVectors vectors of records. With each word it asks for `n_lines` cache lines of what
// follows.
template <size_t kVectors>
HWY_INLINE void bound_vectors(const Weights& rounded, size_t n_words, const uint8_t* words,
                              size_t stride, const uint8_t* next, size_t n_lines,
                              const Shared& shared, const uint8_t* distance, float* bound) {
  const F32 d;
  const I32 di;
  const VecI32 half = hn::Set(di, 0x0f0f0f0f);
  VecI32 upper[kVectors], lower[kVectors];
  for (size_t v = 0; v < kVectors; ++v) upper[v] = lower[v] = hn::Zero(di);
  for (size_t w = 0; w < n_words; ++w) {
    for (size_t line = 0; line < n_lines; ++line)
      prefetch_line(next + (w * n_lines + line) * kCacheLine);
    const int8_t *const upper_of = rounded.upper + w * kTogether, *const lower_of =
                                                                      rounded.lower + w * kTogether;
    const VecI32 upper_of_low = four(upper_of), upper_of_high = four(upper_of + 4),
                 lower_of_low = four(lower_of), lower_of_high = four(lower_of + 4);
    for (size_t v = 0; v < kVectors; ++v) {
      const auto word =
          hn::LoadU(di, reinterpret_cast<const int32_t*>(words + w * stride) + v * kLanes);
      const VecI32 low = hn::And(word, half), high = hn::And(hn::ShiftRight<4>(word), half);
      upper[v] = add_products(upper[v], low, upper_of_low, high, upper_of_high);
      lower[v] = add_products(lower[v], low, lower_of_low, high, lower_of_high);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) {
    const VecI32 sum = hn::Add(hn::ShiftLeft<8>(upper[v]), lower[v]);
    hn::StoreU(hn::MulAdd(hn::ConvertTo(d, sum), hn::Set(d, shared.scale),
                          beside_codes(shared, distance + v * kLanes)),
               d, bound + v * kLanes);
  }
}

void bound_words(const Weights& rounded, size_t n_words, const CoarseParts<const uint8_t>& parts,
                 const uint8_t* next, size_t next_bytes, size_t n, const Shared& shared,
                 float* bound) {
  constexpr size_t kVectors = 4;
  const size_t stride = n * sizeof(uint32_t), n_rounds = n / (kVectors * kLanes);
  // What follows is divided among the rounds of the loop.
  const size_t lines = next ? (next_bytes + kCacheLine - 1) / kCacheLine : 0;
  const size_t per_word = n_rounds ? (lines + n_rounds * n_words - 1) / (n_rounds * n_words) : 0;
  size_t b = 0;
  for (size_t round = 0; round < n_rounds; ++round, b += kVectors * kLanes)
    bound_vectors<kVectors>(rounded, n_words, parts.words + 4 * b, stride,
                            next + round * n_words * per_word * kCacheLine, per_word, shared,
                            parts.distance + b, bound + b);
  for (; b < n; b += kLanes)
    bound_vectors<1>(rounded, n_words, parts.words + 4 * b, stride, nullptr, 0, shared,
                     parts.distance + b, bound + b);
}

#else

void bound_words(const Weights& rounded, size_t n_words, const CoarseParts<const uint8_t>& parts,
                 const uint8_t*, size_t, size_t n, const Shared& shared, float* bound) {
  for (size_t b = 0; b < n; ++b) {
    int32_t sum = 0;
    for (size_t e = 0; e < n_words * kTogether; ++e) {
      const uint8_t byte = parts.words[(e / kTogether * n + b) * 4 + e % 4];
      const int32_t code = e % kTogether < 4 ? byte & 15 : byte >> 4;
      sum += code * (256 * rounded.upper[e] + rounded.lower[e]);
    }
    const float off =
        std::min(static_cast<float>(parts.distance[b]) * shared.per_distance, shared.half_steps);
    bound[b] = shared.sum + off + shared.scale * static_cast<float>(sum);
  }
}

#endif

void bound_records(const float* weight, size_t width, const uint8_t* copy, float unit,
                   const uint8_t* next, size_t n, float* bound, float* scaled) {
  const CoarseParts<const uint8_t> parts(copy, n, width);
  auto* bytes = reinterpret_cast<int8_t*>(scaled + coarse_width(width));
  const Weights rounded{bytes, bytes + coarse_width(width)};
  Shared shared = weigh(weight, width, parts, unit, scaled);
  round_up(scaled, width, shared.scale, rounded);
  shared.scale *= unit;
  bound_words(rounded, coarse_words(width), parts, next, coarse_bytes(n, width), n, shared, bound);
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(code_records);
HWY_EXPORT(bound_records);

size_t coarse_bytes(size_t n, size_t width) {
  return coarse_width(width) * 2 * sizeof(hwy::float16_t) + n +
         coarse_words(width) * n * sizeof(uint32_t);
}

size_t coarse_scratch_bytes(size_t width) { return coarse_width(width) * (sizeof(float) + 2); }

bool make_coarse(const Records& records, size_t width, void* coarse, float* unit) {
  return HWY_DYNAMIC_DISPATCH(code_records)(records, width, static_cast<uint8_t*>(coarse), unit);
}

void bound_coarse(const float* weight, size_t width, const void* coarse, float unit,
                  const void* next, size_t n, float* bound, void* scratch) {
  HWY_DYNAMIC_DISPATCH(bound_records)
  (weight, width, static_cast<const uint8_t*>(coarse), unit, static_cast<const uint8_t*>(next), n,
   bound, static_cast<float*>(scratch));
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
