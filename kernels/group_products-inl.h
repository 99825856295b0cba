// Products of f32 with rows of groups (Q8Group, Q4Group) in integers: of queries with keys, and of
// softmax weights with values. Only where KVASIR_QUAD_DOT is 1.
//
// f32 becomes integers relative to the largest magnitude among the numbers beside it: a query's 8
// bits in a group of 32, as llama.cpp's, the weights of a tile's rows 16 bits in a group. So an
// element of a query is off by at most 1 / 254 of that magnitude, a weight by 1 / 65534. Sums of a
// group's products, and of a tile's products, are exact.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#undef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#else
#define KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#endif

#include <array>
#include <cstring>
#include <limits>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
#if KVASIR_QUAD_DOT
namespace kvasir::kernels::HWY_NAMESPACE {

// ------------------------------------------------------------------ instructions

// gcc 12 copies the sum of _mm512_dpbusd_epi32 and _mm512_dpwssd_epi32 before and after each.
//
// sum += the four products of unsigned with signed bytes, in each lane.
HWY_INLINE void add_quads(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}
// sum += the two products of signed 16 bits, in each lane.
HWY_INLINE void add_pairs(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

HWY_INLINE __m512 load_scales(const uint16_t* scales) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
}

// ------------------------------------------------------------------ scales of rows

// The scales of kGroups groups, two or four, in the first words.
template <size_t kGroups, class T>
HWY_INLINE __m512i scales_of(const T* groups) {
  constexpr bool kTwoLoads = kGroups * sizeof(T) > 128;  // of two groups each
  alignas(64) static constexpr auto kPlaces = [] {
    std::array<uint16_t, 32> places{};
    for (size_t g = 0; g < kGroups; ++g)
      places[g] = static_cast<uint16_t>(kTwoLoads ? g / 2 * 32 + g % 2 * (sizeof(T) / 2)
                                                  : g * (sizeof(T) / 2));
    return places;
  }();
  const __m512i places = _mm512_load_si512(kPlaces.data());
  if constexpr (kTwoLoads)
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(groups), places,
                                     _mm512_loadu_si512(groups + 2));
  if constexpr (kGroups * sizeof(T) < 64)
    return _mm512_permutexvar_epi16(
        places,
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(groups))));
  return _mm512_permutexvar_epi16(places, _mm512_loadu_si512(groups));
}

// Of n rows, a multiple of 16: scales[g * kTileTokens + r] of row r, for kGroups groups from
// `first` on. They are stored row behind row, then transposed.
template <size_t kGroups, class T>
HWY_INLINE void gather_scales_of(const T* const* HWY_RESTRICT rows, size_t n, size_t first,
                                 uint16_t* HWY_RESTRICT scales) {
  alignas(64) uint16_t of_rows[kTileTokens * kGroups];
  HWY_UNROLL(8) for (size_t r = 0; r < n; ++r) {
    const __m128i x = _mm512_castsi512_si128(scales_of<kGroups>(rows[r] + first));
    std::memcpy(of_rows + kGroups * r, &x, kGroups * sizeof(uint16_t));
  }
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 32> order{};
    for (size_t i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i % 16 * kGroups + i / 16);
    return order;
  }();
  for (size_t r = 0; r < n; r += 16) {
    const __m512i a = _mm512_load_si512(of_rows + kGroups * r);
    const __m512i b = kGroups == 4 ? _mm512_load_si512(of_rows + kGroups * r + 32) : a;
    HWY_UNROLL(2) for (size_t g = 0; g < kGroups; g += 2) {
      const __m512i order = _mm512_add_epi16(_mm512_load_si512(kOrder.data()),
                                             _mm512_set1_epi16(static_cast<int16_t>(g)));
      const __m512i two = _mm512_permutex2var_epi16(a, order, b);
      auto* to = reinterpret_cast<__m256i*>(scales + g * kTileTokens + r);
      _mm256_storeu_si256(to, _mm512_castsi512_si256(two));
      _mm256_storeu_si256(to + kTileTokens / 16, _mm512_extracti64x4_epi64(two, 1));
    }
  }
}

// scales[group * kTileTokens + r] of row r, up to a multiple of 32.
template <class T>
HWY_NOINLINE void gather_scales(const T* const* HWY_RESTRICT rows, size_t n_rows, size_t n_groups,
                                uint16_t* HWY_RESTRICT scales) {
  const size_t n = (n_rows + 31) / 32 * 32;
  size_t group = 0;
  for (; group + 4 <= n_groups; group += 4)
    gather_scales_of<4>(rows, n, group, scales + group * kTileTokens);
  for (; group + 2 <= n_groups; group += 2)
    gather_scales_of<2>(rows, n, group, scales + group * kTileTokens);
  for (; group < n_groups; ++group) {
    HWY_UNROLL(16)
    for (size_t r = 0; r < n; ++r) scales[group * kTileTokens + r] = rows[r][group].scale;
  }
}

// ------------------------------------------------------------------ f32 to integers

// Factors that bring numbers up to `largest`, as bits, to integers up to `most`, and back. What is
// no finite number comes back as NaN, numbers below 1e-34 as 0.
struct IntegerScales {
  __m512 to, from;
};
HWY_INLINE IntegerScales integer_scales(__m512i largest, float most) {
  using Limits = std::numeric_limits<float>;
  const __m512 size = _mm512_castsi512_ps(largest), limit = _mm512_set1_ps(Limits::max());
  const __m512 to = _mm512_div_ps(_mm512_set1_ps(most), size);
  const __mmask16 is_number = _mm512_cmp_ps_mask(size, limit, _CMP_LE_OQ);
  const __mmask16 is_used = is_number & _mm512_cmp_ps_mask(to, limit, _CMP_LE_OQ);
  const __m512 from = _mm512_maskz_div_ps(is_used, _mm512_set1_ps(1.0f), to);
  return {_mm512_maskz_mov_ps(is_used, to),
          _mm512_mask_mov_ps(_mm512_set1_ps(Limits::quiet_NaN()), is_number, from)};
}

// The larger magnitude of each lane, as bits; NaN is larger than all. `high` is such bits.
HWY_INLINE __m512i larger_magnitude(__m512i high, __m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  return _mm512_max_epi32(high, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
}

HWY_INLINE __m512i to_integers(__m512 v, __m512 factor) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
}

// ------------------------------------------------------------------ queries with keys

// Keys are multiplied as unsigned bytes: their steps plus this.
template <class T>
inline constexpr int32_t kStepOffset = std::is_same_v<T, Q8Group> ? 128 : 8;

// 32 elements of a query: scale * step, signed bytes, four to a word.
struct QueryGroup {
  uint32_t steps[8];
  float scale;
  int32_t correction;  // what kStepOffset adds to a sum of products, negated
};

// q [32] times `factor`
template <class T>
HWY_INLINE void round_query(const float* q, float factor, QueryGroup* out) {
  const __m512 f = _mm512_set1_ps(factor);
  const __m512 v[2] = {_mm512_mul_ps(f, _mm512_loadu_ps(q)),
                       _mm512_mul_ps(f, _mm512_loadu_ps(q + 16))};
  const __m512i high = larger_magnitude(larger_magnitude(_mm512_setzero_si512(), v[0]), v[1]);
  const IntegerScales s = integer_scales(_mm512_set1_epi32(_mm512_reduce_max_epi32(high)), 127);
  const __mmask16 is_used = _mm512_cmp_ps_mask(s.to, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  int32_t sum = 0;
  for (size_t i = 0; i < 2; ++i) {
    const __m512i x = _mm512_maskz_mov_epi32(is_used, to_integers(v[i], s.to));  // NaN becomes 0
    sum += _mm512_reduce_add_epi32(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->steps + 4 * i), _mm512_cvtepi32_epi8(x));
  }
  out->scale = _mm512_cvtss_f32(s.from);
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

// Elements 16 half to 16 half + 15 of a group of 16 rows, steps plus kStepOffset: w[i], lane r has
// four of row r from 16 half + 4 i on. `words` is kept from the first half to the second.
HWY_INLINE void load_keys(const Q8Group* const* rows, size_t group, size_t half, __m512i* words,
                          __m512i* w) {
  const size_t at = group * sizeof(Q8Group) + offsetof(Q8Group, q);
  transpose_words(reinterpret_cast<const uint8_t* const*>(rows), at + 16 * half, words);
  HWY_UNROLL(4)
  for (size_t i = 0; i < 4; ++i) w[i] = _mm512_xor_si512(words[i], _mm512_set1_epi8(-128));
}
HWY_INLINE void load_keys(const Q4Group* const* rows, size_t group, size_t half, __m512i* words,
                          __m512i* w) {
  const size_t at = group * sizeof(Q4Group) + offsetof(Q4Group, q);
  if (half == 0) transpose_words(reinterpret_cast<const uint8_t* const*>(rows), at, words);
  HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
    const __m512i nibbles = half == 0 ? words[i] : _mm512_srli_epi16(words[i], 4);
    w[i] = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
  }
}

// dots[g * dot_stride + r] = q_g . row r for 32 rows and GT query heads. Two vectors of keys share
// each word of q: Zen 5 takes fewer words from memory than it multiplies.
//   q       [GT, q_stride], n_groups of each
//   scales  [n_groups, kTileTokens], those of the rows
template <size_t GT, class T, class Ahead>
HWY_INLINE void dot_groups(const QueryGroup* q, size_t q_stride, const T* const* rows,
                           const uint16_t* scales, size_t n_groups, float* HWY_RESTRICT dots,
                           size_t dot_stride, Ahead& ahead) {
  __m512 dot[GT][2];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) dot[g][0] = dot[g][1] = _mm512_setzero_ps();
  for (size_t group = 0; group < n_groups; ++group) {
    __m512i words[2][4], w[2][4], sum[GT][2];
    ahead.template ask<lines_of(32 * sizeof(T))>();
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      sum[g][0] = sum[g][1] = _mm512_set1_epi32(q[g * q_stride + group].correction);
    }
    HWY_UNROLL(2) for (size_t half = 0; half < 2; ++half) {
      load_keys(rows, group, half, words[0], w[0]);
      load_keys(rows + 16, group, half, words[1], w[1]);
      HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
        HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
          const uint32_t steps = q[g * q_stride + group].steps[4 * half + i];
          const __m512i of_q = _mm512_set1_epi32(static_cast<int32_t>(steps));
          add_quads(sum[g][0], w[0][i], of_q);
          add_quads(sum[g][1], w[1][i], of_q);
        }
      }
    }
    HWY_UNROLL(2) for (size_t v = 0; v < 2; ++v) {
      const __m512 scale = load_scales(scales + group * kTileTokens + 16 * v);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512 of_q = _mm512_set1_ps(q[g * q_stride + group].scale);
        dot[g][v] =
            _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[g][v]), of_q), scale, dot[g][v]);
      }
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    _mm512_storeu_ps(dots + g * dot_stride, dot[g][0]);
    _mm512_storeu_ps(dots + g * dot_stride + 16, dot[g][1]);
  }
}

// ------------------------------------------------------------------ weights with values

// What a query head gives the rows of a tile in one group: softmax weight times the row's scale, as
// scale * integer. Integers of rows r + i and r + 16 + i lie side by side, r a multiple of 32.
struct GroupWeights {
  alignas(64) int32_t pairs[kTileTokens / 2];
  float scale;
  int32_t sum;  // of the integers; set for Q4Group
};

// Groups whose weights are made at once: those of a head and a group alone are a long chain.
inline constexpr size_t kBatch = 4;

// lane i: the 16 lanes of v[i], combined by fn(vector, vector)
template <class Fn>
HWY_INLINE __m512i reduce_integers(const __m512i* v, const Fn& fn) {
  VecF32 bits[kLanes];
  HWY_UNROLL(16) for (size_t i = 0; i < kLanes; ++i) bits[i].raw = _mm512_castsi512_ps(v[i]);
  alignas(64) float lanes[kLanes];
  reduce_lanes(bits, lanes, [&](VecF32 a, VecF32 b) {
    return VecF32{_mm512_castsi512_ps(fn(_mm512_castps_si512(a.raw), _mm512_castps_si512(b.raw)))};
  });
  return _mm512_load_si512(lanes);
}

// The weights of GT heads in n_groups <= kBatch groups.
//   p       [GT, kTileTokens], finite numbers up to the next multiple of 16 behind n_rows
//   scales  [n_groups, kTileTokens]
template <size_t GT, class T>
HWY_NOINLINE void split_weights(const float* p, size_t n_rows, const uint16_t* scales,
                                size_t n_groups, GroupWeights (*out)[GT]) {
  static_assert(GT * kBatch <= kLanes);
  const auto products = [&](size_t group, size_t row, __m512* x) {
    const __m512 scale = load_scales(scales + group * kTileTokens + row);
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      x[g] = row < n_rows ? _mm512_mul_ps(_mm512_load_ps(p + g * kTileTokens + row), scale)
                          : _mm512_setzero_ps();
    }
  };
  __m512i of_each[kLanes] = {};  // [n_groups, GT]
  for (size_t j = 0; j < n_groups; ++j) {
    __m512i high[GT] = {};
    for (size_t r = 0; r < n_rows; r += 16) {
      __m512 x[GT];
      products(j, r, x);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) high[g] = larger_magnitude(high[g], x[g]);
    }
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) of_each[j * GT + g] = high[g];
  }
  const IntegerScales scale = integer_scales(
      reduce_integers(of_each, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }), 32767);
  alignas(64) float to[kLanes], from[kLanes];
  _mm512_store_ps(to, scale.to);
  _mm512_store_ps(from, scale.from);
  for (size_t j = 0; j < n_groups; ++j) {
    __m512i sum[GT] = {};
    for (size_t r = 0; r < n_rows; r += 32) {
      __m512 x[GT], y[GT];
      products(j, r, x);
      products(j, r + 16, y);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512 factor = _mm512_set1_ps(to[j * GT + g]);
        const __m512i a = to_integers(x[g], factor), b = to_integers(y[g], factor);
        const __m512i both = _mm512_mask_mov_epi16(_mm512_slli_epi32(b, 16), 0x55555555, a);
        if constexpr (std::is_same_v<T, Q4Group>) add_pairs(sum[g], both, _mm512_set1_epi16(1));
        _mm512_store_si512(out[j][g].pairs + r / 2, both);
      }
    }
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      of_each[j * GT + g] = sum[g];
      out[j][g].scale = from[j * GT + g];
    }
  }
  if constexpr (std::is_same_v<T, Q4Group>) {
    alignas(64) int32_t sums[kLanes];
    _mm512_store_si512(sums, reduce_integers(of_each, [](__m512i a, __m512i b) {
                         return _mm512_add_epi32(a, b);
                       }));
    for (size_t j = 0; j < n_groups; ++j)
      for (size_t g = 0; g < GT; ++g) out[j][g].sum = sums[j * GT + g];
  }
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
  // Sums of even and of odd pairs of rows: one alone would wait for its product before.
  __m512i even[GT][2], odd[GT][2];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    const bool is_nibble = std::is_same_v<T, Q4Group>;
    even[g][0] = even[g][1] = _mm512_set1_epi32(is_nibble ? -kStepOffset<T> * weights[g].sum : 0);
    odd[g][0] = odd[g][1] = _mm512_setzero_si512();
  }
  for (size_t r = 0; r < n_rows; r += 32) {
    for (size_t i = 0; i < 16; i += 2) {
      ahead.template ask<lines_of(4 * sizeof(T))>();
      __m512i v[2];
      load_values(rows[r + i][group], rows[r + 16 + i][group], v);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i w = _mm512_set1_epi32(weights[g].pairs[r / 2 + i]);
        add_pairs(even[g][0], v[0], w);
        add_pairs(even[g][1], v[1], w);
      }
      load_values(rows[r + i + 1][group], rows[r + 16 + i + 1][group], v);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i w = _mm512_set1_epi32(weights[g].pairs[r / 2 + i + 1]);
        add_pairs(odd[g][0], v[0], w);
        add_pairs(odd[g][1], v[1], w);
      }
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
      float* at = sum + g * sum_stride + group * kGroupElements + 16 * i;
      const __m512 of_tile = _mm512_cvtepi32_ps(_mm512_add_epi32(even[g][i], odd[g][i]));
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
  GroupWeights weights[kBatch][GT];
  for (size_t first = 0; first < n_groups; first += kBatch) {
    const size_t n = n_groups - first < kBatch ? n_groups - first : kBatch;
    split_weights<GT, T>(p, n_rows, scales + first * kTileTokens, n, weights);
    for (size_t j = 0; j < n; ++j)
      add_group<GT>(weights[j], rows, n_rows, first + j, sum, sum_stride, ahead);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_QUAD_DOT
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
