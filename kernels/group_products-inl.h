// Products of f32 with rows of groups (Q8Group, Q4Group) in integers: of queries with keys, and of
// softmax weights with values. Only where KVASIR_QUAD_DOT is 1.
//
// f32 becomes 16 bits, relative to the largest magnitude among the numbers beside it: those of a
// query in a group of 32, or the weights of a tile's rows in a group. So a number is off by at most
// 1 / 65278 of that magnitude. Sums of a group's products, and of a tile's products, are exact.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#undef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#else
#define KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#endif

#include <array>
#include <bit>
#include <limits>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
#if KVASIR_QUAD_DOT
namespace kvasir::kernels::HWY_NAMESPACE {

// ------------------------------------------------------------------ instructions

// gcc 12 copies the sum of _mm512_dpbusd_epi32 and _mm512_dpwssd_epi32 before and after each.
//
// sum += the four products of unsigned bytes with the signed bytes of `word`, in each lane.
HWY_INLINE void add_quads(__m512i& sum, __m512i bytes, const uint32_t& word) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(word));
}
// sum += the two products of signed 16 bits, in each lane.
HWY_INLINE void add_pairs(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

HWY_INLINE __m512 load_scales(const uint16_t* scales) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
}

// ------------------------------------------------------------------ f32 to integers

// Factors that bring numbers up to `largest` to integers up to `most`, and back. What is no finite
// number comes back as NaN, numbers below 1e-34 as 0.
struct IntegerScale {
  float to, from;
};
HWY_INLINE IntegerScale integer_scale(float largest, float most) {
  using Limits = std::numeric_limits<float>;
  if (!(largest <= Limits::max())) return {0.0f, Limits::quiet_NaN()};
  const float to = most / largest;
  if (!(to <= Limits::max())) return {0.0f, 0.0f};
  return {to, 1.0f / to};
}

// The largest magnitude; NaN is larger than all.
template <size_t kVectors>
HWY_INLINE float largest_of(const __m512* v) {
  __m512i high = _mm512_setzero_si512();
  HWY_UNROLL(8) for (size_t i = 0; i < kVectors; ++i) {
    const __m512i bits = _mm512_castps_si512(v[i]);
    high = _mm512_max_epi32(high, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
  }
  return std::bit_cast<float>(_mm512_reduce_max_epi32(high));
}

HWY_INLINE __m512i to_integers(__m512 v, float factor) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(factor)));
}

// ------------------------------------------------------------------ queries with keys

// Keys are multiplied as unsigned bytes: their steps plus this.
template <class T>
inline constexpr int32_t kStepOffset = std::is_same_v<T, Q8Group> ? 128 : 8;

// 32 elements of a query: scale * (256 upper + lower), both signed bytes, four to a word.
struct QueryGroup {
  uint32_t upper[8], lower[8];
  float scale;
  int32_t correction;  // what kStepOffset adds to a sum of products, negated
};

// q [32] times `factor`
template <class T>
HWY_INLINE void split_query(const float* q, float factor, QueryGroup* out) {
  constexpr float kMost = 127 * 256 + 127;
  const __m512 f = _mm512_set1_ps(factor);
  const __m512 v[2] = {_mm512_mul_ps(f, _mm512_loadu_ps(q)),
                       _mm512_mul_ps(f, _mm512_loadu_ps(q + 16))};
  const IntegerScale s = integer_scale(largest_of<2>(v), kMost);
  int32_t sum = 0;
  for (size_t i = 0; i < 2; ++i) {
    const __m512i x =
        s.to == 0.0f ? _mm512_setzero_si512() : to_integers(v[i], s.to);  // NaN becomes 0
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8);
    sum += _mm512_reduce_add_epi32(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->upper + 4 * i), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->lower + 4 * i), _mm512_cvtepi32_epi8(x));
  }
  out->scale = s.from;
  out->correction = -kStepOffset<T> * sum;
}

// w[i], lane r: bytes [at + 4 i, at + 4 i + 4) of row r, for 16 rows and i < 4.
HWY_INLINE void transpose_words(const uint8_t* const* rows, size_t at, __m512i* w) {
  __m512i z[4];
  HWY_UNROLL(4) for (size_t r = 0; r < 4; ++r) {
    const auto load = [&](size_t row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at));
    };
    z[r] = _mm512_castsi128_si512(load(r));
    z[r] = _mm512_inserti32x4(z[r], load(r + 4), 1);
    z[r] = _mm512_inserti32x4(z[r], load(r + 8), 2);
    z[r] = _mm512_inserti32x4(z[r], load(r + 12), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
  const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), e = _mm512_unpackhi_epi32(z[2], z[3]);
  w[0] = _mm512_unpacklo_epi64(a, c);
  w[1] = _mm512_unpackhi_epi64(a, c);
  w[2] = _mm512_unpacklo_epi64(b, e);
  w[3] = _mm512_unpackhi_epi64(b, e);
}

// Steps plus kStepOffset of a group of 16 rows: w[i], lane r has elements 4 i to 4 i + 3 of row r.
HWY_INLINE void load_keys(const Q8Group* const* rows, size_t group, __m512i* w) {
  const size_t at = group * sizeof(Q8Group) + offsetof(Q8Group, q);
  transpose_words(reinterpret_cast<const uint8_t* const*>(rows), at, w);
  transpose_words(reinterpret_cast<const uint8_t* const*>(rows), at + 16, w + 4);
  HWY_UNROLL(8)
  for (size_t i = 0; i < 8; ++i) w[i] = _mm512_xor_si512(w[i], _mm512_set1_epi8(-128));
}
HWY_INLINE void load_keys(const Q4Group* const* rows, size_t group, __m512i* w) {
  const size_t at = group * sizeof(Q4Group) + offsetof(Q4Group, q);
  const __m512i low = _mm512_set1_epi8(15);
  transpose_words(reinterpret_cast<const uint8_t* const*>(rows), at, w);
  HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
    w[4 + i] = _mm512_and_si512(_mm512_srli_epi16(w[i], 4), low);
    w[i] = _mm512_and_si512(w[i], low);
  }
}

// dots[g * dot_stride + r] = q_g . row r for 16 rows and GT query heads.
//   q       [GT, q_stride], n_groups of each
//   scales  [n_groups, kTileTokens], those of the rows
template <size_t GT, class T, class Ahead>
HWY_INLINE void dot_groups(const QueryGroup* q, size_t q_stride, const T* const* rows,
                           const uint16_t* scales, size_t n_groups, float* HWY_RESTRICT dots,
                           size_t dot_stride, Ahead& ahead) {
  __m512 dot[GT];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) dot[g] = _mm512_setzero_ps();
  for (size_t group = 0; group < n_groups; ++group) {
    __m512i w[8], upper[GT], lower[GT];
    load_keys(rows, group, w);
    ahead.template ask<lines_of(16 * sizeof(T))>();
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      upper[g] = _mm512_setzero_si512();
      lower[g] = _mm512_set1_epi32(q[g * q_stride + group].correction);
    }
    HWY_UNROLL(8) for (size_t i = 0; i < 8; ++i) {
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        add_quads(upper[g], w[i], q[g * q_stride + group].upper[i]);
        add_quads(lower[g], w[i], q[g * q_stride + group].lower[i]);
      }
    }
    const __m512 scale = load_scales(scales + group * kTileTokens);
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper[g], 8), lower[g]);
      const __m512 of_q = _mm512_set1_ps(q[g * q_stride + group].scale);
      dot[g] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), of_q), scale, dot[g]);
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) _mm512_storeu_ps(dots + g * dot_stride, dot[g]);
}

// ------------------------------------------------------------------ weights with values

// What a query head gives the rows of a tile in one group: softmax weight times the row's scale, as
// scale * integer. Integers of rows r + i and r + 16 + i lie side by side, r a multiple of 32.
struct GroupWeights {
  alignas(64) int32_t pairs[kTileTokens / 2];
  float scale;
  int32_t sum;  // of the integers; set for Q4Group
};

// p [kTileTokens], finite numbers up to the next multiple of 16 behind n_rows
template <class T>
HWY_INLINE void split_weights(const float* p, size_t n_rows, const __m512* scales,
                              GroupWeights* out) {
  constexpr size_t kVectors = kTileTokens / 16;
  __m512 x[kVectors];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVectors; ++i)
    x[i] = 16 * i < n_rows ? _mm512_mul_ps(_mm512_loadu_ps(p + 16 * i), scales[i])
                           : _mm512_setzero_ps();
  const IntegerScale s = integer_scale(largest_of<kVectors>(x), 32767);
  __m512i sum = _mm512_setzero_si512();
  HWY_UNROLL(4) for (size_t i = 0; i < kVectors; i += 2) {
    const __m512i a = to_integers(x[i], s.to), b = to_integers(x[i + 1], s.to);
    const __m512i both = _mm512_mask_mov_epi16(_mm512_slli_epi32(b, 16), 0x55555555, a);
    if constexpr (std::is_same_v<T, Q4Group>) add_pairs(sum, both, _mm512_set1_epi16(1));
    _mm512_store_si512(out->pairs + 8 * i, both);
  }
  out->scale = s.from;
  if constexpr (std::is_same_v<T, Q4Group>) out->sum = _mm512_reduce_add_epi32(sum);
}

// Steps of a group of two rows, as 16 bits, a and b in turn: elements 0 to 15 and 16 to 31.
HWY_INLINE void load_values(const Q8Group& a, const Q8Group& b, __m512i* steps) {
  const auto load = [](const Q8Group& group) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group.q));
  };
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint8_t, 64> order{};
    for (size_t i = 0; i < 64; ++i) order[i] = static_cast<uint8_t>(i / 4 + 16 * (i % 4));
    return order;
  }();
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load(a)), load(b), 1);
  const __m512i x = _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.data()), both);
  steps[0] = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
  steps[1] = _mm512_srai_epi16(x, 8);
}
// Of nibbles, kStepOffset more.
HWY_INLINE void load_values(const Q4Group& a, const Q4Group& b, __m512i* steps) {
  const auto load = [](const Q4Group& group) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(group.q));
  };
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint8_t, 64> order{};
    for (size_t i = 0; i < 64; ++i) order[i] = static_cast<uint8_t>(i / 4 + 16 * (i % 4 / 2));
    return order;
  }();
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load(a)), load(b), 1);
  const __m512i x =
      _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.data()), _mm512_castsi256_si512(both));
  steps[0] = _mm512_and_si512(x, _mm512_set1_epi16(15));
  steps[1] = _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi16(15));
}

// sum[g * sum_stride + 32 group + i] += sum_r weight of row r * its step i, for GT query heads.
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_group(const GroupWeights* weights, const T* const* rows, size_t n_rows,
                          size_t group, float* HWY_RESTRICT sum, size_t sum_stride, Ahead& ahead) {
  __m512i acc[GT][2];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    const bool is_nibble = std::is_same_v<T, Q4Group>;
    acc[g][0] = acc[g][1] = _mm512_set1_epi32(is_nibble ? -kStepOffset<T> * weights[g].sum : 0);
  }
  for (size_t r = 0; r < n_rows; r += 32) {
    for (size_t i = 0; i < 16; ++i) {
      __m512i v[2];
      load_values(rows[r + i][group], rows[r + 16 + i][group], v);
      ahead.template ask<lines_of(2 * sizeof(T))>();
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i w = _mm512_set1_epi32(weights[g].pairs[r / 2 + i]);
        add_pairs(acc[g][0], v[0], w);
        add_pairs(acc[g][1], v[1], w);
      }
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
      float* at = sum + g * sum_stride + group * kGroupElements + 16 * i;
      const __m512 of_tile = _mm512_cvtepi32_ps(acc[g][i]);
      _mm512_storeu_ps(
          at, _mm512_fmadd_ps(of_tile, _mm512_set1_ps(weights[g].scale), _mm512_loadu_ps(at)));
    }
  }
}

// sum[g * sum_stride + i] += sum_r p[g * kTileTokens + r] * element i of row r.
//   rows    valid up to the next multiple of 32 behind n_rows
//   scales  [n_groups, kTileTokens], those of the rows
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_groups(const float* HWY_RESTRICT p, const T* const* rows, size_t n_rows,
                           const uint16_t* scales, size_t n_groups, float* HWY_RESTRICT sum,
                           size_t sum_stride, Ahead& ahead) {
  constexpr size_t kVectors = kTileTokens / 16;
  constexpr size_t kBatch = 4;  // groups whose weights are made at once: each alone is a long chain
  GroupWeights weights[kBatch][GT];
  for (size_t first = 0; first < n_groups; first += kBatch) {
    const size_t n = n_groups - first < kBatch ? n_groups - first : kBatch;
    for (size_t j = 0; j < n; ++j) {
      __m512 scale[kVectors];
      HWY_UNROLL(8)
      for (size_t i = 0; i < kVectors; ++i)
        scale[i] = load_scales(scales + (first + j) * kTileTokens + 16 * i);
      for (size_t g = 0; g < GT; ++g)
        split_weights<T>(p + g * kTileTokens, n_rows, scale, &weights[j][g]);
    }
    for (size_t j = 0; j < n; ++j)
      add_group<GT>(weights[j], rows, n_rows, first + j, sum, sum_stride, ahead);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_QUAD_DOT
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
