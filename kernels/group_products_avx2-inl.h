// Products with rows of groups in integers, with AVX2. Included by group_products-inl.h alone.
//
// A product is a sum of two: of bytes in 16 bits, which steps of nibbles leave room to add up, or
// of 16 bits in 32.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_GROUP_PRODUCTS_AVX2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_GROUP_PRODUCTS_AVX2_INL_H_
#undef KVASIR_KERNELS_GROUP_PRODUCTS_AVX2_INL_H_
#else
#define KVASIR_KERNELS_GROUP_PRODUCTS_AVX2_INL_H_
#endif

#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
namespace kvasir::kernels::HWY_NAMESPACE {

// ------------------------------------------------------------------ instructions

// As intrinsics gcc 12 would make all products before it adds two of them, and run out of
// registers.
//
// sum += x, lanes of 16 and of 32 bits
HWY_INLINE void add_16_bits(__m256i& sum, __m256i x) {
  asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x));
}
HWY_INLINE void add_32_bits(__m256i& sum, __m256i x) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x));
}

// Each lane's two 16 bits, added.
HWY_INLINE __m256i widen_pairs(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

HWY_INLINE __m256 load_scales(const uint16_t* scales) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
}

HWY_INLINE __m128i load_16_bytes(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// scales [runs of the rows, n_groups, kRunRows], up to an even number of runs. The scale of row i
// is loaded into lane i, and what surrounds it is not taken.
template <class T>
HWY_NOINLINE void gather_scales(const RowRuns& runs, size_t n_rows, size_t n_groups,
                                uint16_t* HWY_RESTRICT scales, LinesAhead*) {
  static_assert(offsetof(T, scale) == 0 && sizeof(T) >= 16);
  const size_t row_bytes = n_groups * sizeof(T), to_next = row_bytes - sizeof(uint16_t);
  for (size_t r = 0; r < hwy::RoundUpTo(n_rows, kRowsTogether); r += kRunRows) {
    for (size_t group = 0; group < n_groups; ++group) {
      const uint8_t* at = runs.first[r / kRunRows] + group * sizeof(T);
      HWY_UNROLL(2) for (size_t i = 0; i < kRunRows; i += 8, scales += 8) {
        __m128i x = load_16_bytes(at);
        x = _mm_blend_epi16(x, load_16_bytes(at + to_next), 1 << 1);
        x = _mm_blend_epi16(x, load_16_bytes(at + 2 * to_next), 1 << 2);
        x = _mm_blend_epi16(x, load_16_bytes(at + 3 * to_next), 1 << 3);
        x = _mm_blend_epi16(x, load_16_bytes(at + 4 * to_next), 1 << 4);
        x = _mm_blend_epi16(x, load_16_bytes(at + 5 * to_next), 1 << 5);
        x = _mm_blend_epi16(x, load_16_bytes(at + 6 * to_next), 1 << 6);
        x = _mm_blend_epi16(x, load_16_bytes(at + 7 * to_next), 1 << 7);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(scales), x);
        at += 8 * row_bytes;
      }
    }
  }
}

// Whether add_groups() takes values with these scales.
template <class T>
HWY_INLINE bool takes_scales(const uint16_t*, size_t) {
  return true;
}

// ------------------------------------------------------------------ f32 to integers

// Factors that bring numbers up to `largest` to integers up to `most`, and back. What is no finite
// number comes back as NaN, numbers below 1e-34 as 0.
struct IntegerScales {
  __m256 to, from;
};
HWY_INLINE IntegerScales integer_scales(__m256 largest, __m256 most) {
  using Limits = std::numeric_limits<float>;
  const __m256 limit = _mm256_set1_ps(Limits::max());
  const __m256 to = _mm256_div_ps(most, largest);
  const __m256 is_number = _mm256_cmp_ps(largest, limit, _CMP_LE_OQ);
  const __m256 is_used = _mm256_and_ps(is_number, _mm256_cmp_ps(to, limit, _CMP_LE_OQ));
  const __m256 from = _mm256_and_ps(is_used, _mm256_div_ps(_mm256_set1_ps(1.0f), to));
  return {_mm256_and_ps(is_used, to),
          _mm256_blendv_ps(_mm256_set1_ps(Limits::quiet_NaN()), from, is_number)};
}

HWY_INLINE __m256i to_integers(__m256 v, __m256 factor) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(v, factor));
}

// ------------------------------------------------------------------ queries with keys

// Nibbles are multiplied as unsigned bytes: their steps plus this. Of bytes, magnitudes are.
template <class T>
inline constexpr int32_t kStepOffset = std::is_same_v<T, Q8Group> ? 0 : 8;

// q [32] times `factor`
template <class T>
HWY_INLINE void round_query(const float* q, float factor, QueryGroup* out) {
  float scaled[kGroupElements], largest = 0.0f;
  for (size_t i = 0; i < kGroupElements; ++i) scaled[i] = factor * q[i];
  for (const float x : scaled) {
    if (!(std::fabs(x) <= largest)) largest = std::fabs(x);
    if (std::isnan(largest)) break;
  }
  const IntegerScales s = integer_scales(_mm256_set1_ps(largest), _mm256_set1_ps(127.0f));
  const float to = _mm256_cvtss_f32(s.to);
  auto* steps = reinterpret_cast<int8_t*>(out->steps);
  int32_t sum = 0;
  for (size_t i = 0; i < kGroupElements; ++i) {
    // What is no number is none of those that are used.
    const int32_t step = to == 0.0f ? 0 : _mm_cvtss_si32(_mm_set_ss(scaled[i] * to));
    steps[i] = static_cast<int8_t>(step);
    sum += step;
  }
  out->scale = _mm256_cvtss_f32(s.from);
  out->correction = -kStepOffset<T> * sum;
}

// z[i], lane r of 8: bytes [4 i, 4 i + 4) of row r.
HWY_INLINE void load_words(const uint8_t* rows, size_t row_bytes, __m256i* z) {
  __m256i x[4];
  HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
    const uint8_t* row = rows + i * row_bytes;
    x[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16_bytes(row)),
                                   load_16_bytes(row + 4 * row_bytes), 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
  const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), e = _mm256_unpackhi_epi32(x[2], x[3]);
  z[0] = _mm256_unpacklo_epi64(a, c);
  z[1] = _mm256_unpackhi_epi64(a, c);
  z[2] = _mm256_unpacklo_epi64(b, e);
  z[3] = _mm256_unpackhi_epi64(b, e);
}

// Sums of products of 8 keys with a query head, in the making.
template <class T>
struct KeySum;

template <>
struct KeySum<Q8Group> {
  static constexpr size_t kParts = 2, kHalves = 1;  // of a group's 16 bytes, of their words
  struct Keys {
    __m256i steps, magnitude;
  };
  HWY_INLINE KeySum() : sum(_mm256_setzero_si256()) {}
  static HWY_INLINE Keys keys_of(__m256i word, size_t) { return {word, _mm256_abs_epi8(word)}; }

  // Two products of magnitudes up to 128 and steps of q up to 127 fit 16 bits.
  HWY_INLINE void add(const Keys& keys, __m256i of_q) {
    const __m256i with_sign = _mm256_sign_epi8(of_q, keys.steps);
    add_32_bits(sum, widen_pairs(_mm256_maddubs_epi16(keys.magnitude, with_sign)));
  }
  HWY_INLINE __m256i all(int32_t) const { return sum; }

  __m256i sum;
};

template <>
struct KeySum<Q4Group> {
  static constexpr size_t kParts = 1, kHalves = 2;
  using Keys = __m256i;
  HWY_INLINE KeySum() : pairs(_mm256_setzero_si256()) {}
  static HWY_INLINE Keys keys_of(__m256i word, size_t half) {
    return _mm256_and_si256(half == 0 ? word : _mm256_srli_epi16(word, 4), _mm256_set1_epi8(15));
  }

  // A lane adds 16 products of up to 15 * 127, which fit 16 bits.
  HWY_INLINE void add(const Keys& keys, __m256i of_q) {
    add_16_bits(pairs, _mm256_maddubs_epi16(keys, of_q));
  }
  HWY_INLINE __m256i all(int32_t correction) const {
    return _mm256_add_epi32(widen_pairs(pairs), _mm256_set1_epi32(correction));
  }

  __m256i pairs;
};

// dots[g * kTileTokens + r] = q_g . row r for n_rows rows and GT query heads.
//   q       [GT, n_groups]
//   dots    written up to the next multiple of 8 behind n_rows
//   scales  as gather_scales() writes those of the rows
template <size_t GT, class T, class Ahead>
HWY_INLINE void dot_groups(const QueryGroup* q, const RowRuns& runs, size_t n_rows,
                           const uint16_t* scales, size_t n_groups, float* HWY_RESTRICT dots,
                           Ahead& ahead) {
  using Sum = KeySum<T>;
  constexpr size_t kLines = lines_of(kLanes * sizeof(T));
  const size_t row_bytes = n_groups * sizeof(T);
  for (size_t r = 0; r < n_rows; r += kLanes) {
    const uint8_t* rows = runs.first[r / kRunRows] + r % kRunRows * row_bytes;
    const uint16_t* of_rows = scales + r / kRunRows * n_groups * kRunRows + r % kRunRows;
    __m256 dot[GT];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) dot[g] = _mm256_setzero_ps();
    for (size_t group = 0; group < n_groups; ++group, rows += sizeof(T), of_rows += kRunRows) {
      const auto lines = ahead.template take<kLines>();
      Sum sum[GT];
      HWY_UNROLL(2) for (size_t part = 0; part < Sum::kParts; ++part) {
        __m256i words[4];
        load_words(rows + offsetof(T, q) + 16 * part, row_bytes, words);
        HWY_UNROLL(2) for (size_t half = 0; half < Sum::kHalves; ++half) {
          HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
            const size_t step = 4 * (part + half) + i;
            HWY_UNROLL(2)
            for (size_t line = step * kLines / 8; line < (step + 1) * kLines / 8; ++line)
              lines.ask(line);
            const auto keys = Sum::keys_of(words[i], half);
            HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
              const uint32_t steps = q[g * n_groups + group].steps[step];
              sum[g].add(keys, _mm256_set1_epi32(static_cast<int32_t>(steps)));
            }
          }
        }
      }
      const __m256 scale = load_scales(of_rows);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const QueryGroup& of_q = q[g * n_groups + group];
        const __m256 of_both = _mm256_mul_ps(scale, _mm256_set1_ps(of_q.scale));
        dot[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[g].all(of_q.correction)), of_both, dot[g]);
      }
    }
    HWY_UNROLL(4)
    for (size_t g = 0; g < GT; ++g) _mm256_store_ps(dots + g * kTileTokens + r, dot[g]);
  }
}

// ------------------------------------------------------------------ weights with values

// Of bytes two products exceed 16 bits, so sums would have to be widened one by one, and their
// weights could have no sign.
template <class T>
inline constexpr unsigned kWeightSteps = std::is_same_v<T, Q4Group> ? 127 : 32767;

inline constexpr float kLargestInteger = 32767.0f;  // of softmax weights, and of scales
inline constexpr float kProductDivisor = 32768.0f;  // vpmulhrsw's, of their products

// What GT query heads give the rows of a tile in up to 4 groups: softmax weight times the row's
// scale, as scale * integer.
template <size_t GT, class T>
struct TileWeights;

template <size_t GT>
struct TileWeights<GT, Q8Group> {
  // Of 16 rows, integers of rows i and 8 + i lie side by side.
  alignas(32) int32_t pairs[4][GT][kTileTokens / 2];
  float scales[4][GT];
};

template <size_t GT>
struct TileWeights<GT, Q4Group> {
  // Of 32 rows, integers of 8 bits of rows i, 16 + i, 8 + i and 24 + i lie side by side.
  alignas(32) int32_t quads[4][GT][kTileTokens / 4];
  float scales[kTileTokens / kRowsTogether][4][GT];
  float offsets[4][GT];  // what kStepOffset adds to sums of products, negated
};

// Lane i: the low 16 bits of first's, and above them those of second's.
HWY_INLINE __m256i in_pairs(__m256i first, __m256i second) {
  return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
}

// The largest magnitude of a group's scales; NaN is larger than all.
//   scales  [.., kRunRows] of each run, `stride` from run to run
HWY_INLINE float largest_scale(const uint16_t* scales, size_t n_rows, size_t stride) {
  __m256i high = _mm256_setzero_si256();
  for (size_t r = 0; r < n_rows; r += kRunRows, scales += stride) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    high = _mm256_max_epu16(high, _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)));
  }
  const __m128i half =
      _mm_max_epu16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return _cvtsh_ss(static_cast<uint16_t>(~_mm_extract_epi16(least, 0)));
}

// n of 16 rows, 8 rows after 8: as integers of 16 bits, in pairs.
HWY_INLINE __m256i pairs_of_weights(const float* p, size_t n, float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  const auto load = [&](size_t i)
                        HWY_ATTR { return i < n ? _mm256_load_ps(p + i) : _mm256_setzero_ps(); };
  return in_pairs(to_integers(load(0), f), to_integers(load(kLanes), f));
}
HWY_INLINE __m256i pairs_of_scales(const uint16_t* scales, float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  return in_pairs(to_integers(load_scales(scales), f),
                  to_integers(load_scales(scales + kLanes), f));
}

// The weights of GT heads in kGroups groups.
//   p       [GT, kTileTokens], in [0, most] and 0 or NaN behind n_rows up to a multiple of 8
//   most    [GT]
//   scales  [.., kRunRows] of each run, `stride` from run to run
template <size_t GT, size_t kGroups, class T>
HWY_NOINLINE void split_weights(const float* p, const float* most, size_t n_rows,
                                const uint16_t* scales, size_t stride,
                                TileWeights<GT, Q8Group>& weights, LinesAhead*) {
  static_assert(GT <= 4 && kGroups <= 4);
  // Of heads in lanes 0 to 3, of groups from lane 4 on.
  alignas(32) float largest[kLanes] = {}, to[kLanes], from[kLanes];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) largest[g] = most[g];
  HWY_UNROLL(4)
  for (size_t j = 0; j < kGroups; ++j)
    largest[4 + j] = largest_scale(scales + j * kRunRows, n_rows, stride);
  const IntegerScales factors =
      integer_scales(_mm256_load_ps(largest), _mm256_set1_ps(kLargestInteger));
  _mm256_store_ps(to, factors.to);
  _mm256_store_ps(from, factors.from);
  for (size_t r = 0; r < n_rows; r += kRunRows) {
    __m256i of_head[GT];
    HWY_UNROLL(4)
    for (size_t g = 0; g < GT; ++g)
      of_head[g] = pairs_of_weights(p + g * kTileTokens + r, n_rows - r, to[g]);
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      const __m256i of_group =
          pairs_of_scales(scales + r / kRunRows * stride + j * kRunRows, to[4 + j]);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(weights.pairs[j][g] + r / 2),
                           _mm256_mulhrs_epi16(of_head[g], of_group));
      }
    }
  }
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4)
    for (size_t g = 0; g < GT; ++g) weights.scales[j][g] = from[g] * from[4 + j] * kProductDivisor;
  }
}

// Lane g: the largest of n weights of head g, of 32 rows, as bits: NaN of either sign is larger
// than all.
template <size_t GT>
HWY_INLINE __m128 largest_weights(const float* p, size_t n) {
  __m256i high[4];
  HWY_UNROLL(4) for (size_t g = 0; g < 4; ++g) {
    high[g] = _mm256_setzero_si256();
    if (g >= GT) continue;
    HWY_UNROLL(4) for (size_t i = 0; i < kRowsTogether; i += kLanes) {
      const float* at = p + g * kTileTokens + i;
      if (i < n) high[g] = _mm256_max_epu32(high[g], _mm256_castps_si256(_mm256_load_ps(at)));
    }
  }
  const auto join = [](__m256i a, __m256i b) HWY_ATTR {
    return _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  };
  const __m256i a = join(high[0], high[1]), b = join(high[2], high[3]);
  const __m256i all = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  return _mm_castsi128_ps(
      _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

template <size_t GT, size_t kGroups, class T>
HWY_NOINLINE void split_weights(const float* p, const float*, size_t n_rows, const uint16_t* scales,
                                size_t stride, TileWeights<GT, Q4Group>& weights, LinesAhead*) {
  static_assert(GT <= 4 && kGroups <= 4);
  constexpr float kUpper8 = 256.0f;
  const __m256 integers =
      _mm256_blend_ps(_mm256_set1_ps(kLargestInteger), _mm256_set1_ps(127.0f * kUpper8), 0xf0);
  __m256 sum[kGroups][GT];
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) sum[j][g] = _mm256_setzero_ps();
  }
  for (size_t r = 0; r < n_rows; r += kRowsTogether, scales += 2 * stride) {
    const size_t n = n_rows - r;
    // Of heads in lanes 0 to 3, of groups from lane 4 on.
    alignas(32) float largest[kLanes] = {}, to[kLanes], from[kLanes];
    _mm_store_ps(largest, largest_weights<GT>(p + r, n));
    HWY_UNROLL(4)
    for (size_t j = 0; j < kGroups; ++j)
      largest[4 + j] = largest_scale(scales + j * kRunRows, kRowsTogether, stride);
    const IntegerScales factors = integer_scales(_mm256_load_ps(largest), integers);
    _mm256_store_ps(to, factors.to);
    _mm256_store_ps(from, factors.from);
    __m256i of_head[GT][2];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const float* of_rows = p + g * kTileTokens + r;
      of_head[g][0] = pairs_of_weights(of_rows, n, to[g]);
      of_head[g][1] = n > kRunRows ? pairs_of_weights(of_rows + kRunRows, n - kRunRows, to[g])
                                   : _mm256_setzero_si256();
    }
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      const uint16_t* at = scales + j * kRunRows;
      const __m256i of_group[2] = {pairs_of_scales(at, to[4 + j]),
                                   pairs_of_scales(at + stride, to[4 + j])};
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        // Of 16 bits the upper 8, rounded.
        const auto product = [&](size_t i) HWY_ATTR {
          return _mm256_add_epi16(_mm256_mulhrs_epi16(of_head[g][i], of_group[i]),
                                  _mm256_set1_epi16(128));
        };
        const __m256i quads =
            _mm256_or_si256(_mm256_srli_epi16(product(0), 8),
                            _mm256_and_si256(product(1), _mm256_set1_epi16(-256)));
        _mm256_store_si256(reinterpret_cast<__m256i*>(weights.quads[j][g] + r / 4), quads);
        const float scale = from[g] * from[4 + j] * kProductDivisor * kUpper8;
        weights.scales[r / kRowsTogether][j][g] = scale;
        const __m256i of_quads = widen_pairs(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quads));
        sum[j][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(of_quads), _mm256_set1_ps(scale), sum[j][g]);
      }
    }
  }
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4)
    for (size_t g = 0; g < GT; ++g)
      weights.offsets[j][g] =
          -float{kStepOffset<T>} * hn::GetLane(hn::SumOfLanes(F32(), VecF32{sum[j][g]}));
  }
}

// ------------------------------------------------------------------ values of 8 bits

// Steps of half a group of two rows, as 16 bits, a and b in turn, 16 elements.
HWY_INLINE void load_values(const Q8Group& a, const Q8Group& b, size_t half, __m256i* steps) {
  const auto load = [half](const Q8Group& group) HWY_ATTR {
    return _mm256_cvtepi8_epi16(
        load_16_bytes(reinterpret_cast<const uint8_t*>(group.q) + 16 * half));
  };
  const __m256i of_a = load(a), of_b = load(b);
  steps[0] = _mm256_unpacklo_epi16(of_a, of_b);
  steps[1] = _mm256_unpackhi_epi16(of_a, of_b);
}

// sum[g * sum_stride + 32 group + i] += sum_r weight of row r in group j of `weights` * its step i,
// for GT query heads.
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_group(const TileWeights<GT, Q8Group>& weights, size_t j, const RowRuns& runs,
                          size_t n_rows, size_t n_groups, size_t group, float* HWY_RESTRICT sum,
                          size_t sum_stride, Ahead& ahead) {
  const size_t row_bytes = n_groups * sizeof(T);
  constexpr size_t kLines = lines_of(kRunRows * sizeof(T) / 2);
  sum += group * kGroupElements;
  HWY_UNROLL(2) for (size_t half = 0; half < 2; ++half, sum += kGroupElements / 2) {
    __m256i sums[GT][2];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) sums[g][0] = sums[g][1] = _mm256_setzero_si256();
    for (size_t r = 0; r < n_rows; r += kRunRows) {
      const uint8_t* a = runs.first[r / kRunRows] + group * sizeof(T);
      const uint8_t* b = a + kLanes * row_bytes;
      // Without a copy per run gcc 12 would add in memory.
      __m256i of_run[GT][2];
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        of_run[g][0] = sums[g][0];
        of_run[g][1] = sums[g][1];
      }
      const auto lines = ahead.template take<kLines>();
      HWY_UNROLL(8) for (size_t i = 0; i < kLanes; ++i) {
        HWY_UNROLL(2)
        for (size_t line = i * kLines / 8; line < (i + 1) * kLines / 8; ++line) lines.ask(line);
        __m256i v[2];
        load_values(*reinterpret_cast<const T*>(a), *reinterpret_cast<const T*>(b), half, v);
        a += row_bytes;
        b += row_bytes;
        HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
          const __m256i w = _mm256_set1_epi32(weights.pairs[j][g][r / 2 + i]);
          add_32_bits(of_run[g][0], _mm256_madd_epi16(v[0], w));
          add_32_bits(of_run[g][1], _mm256_madd_epi16(v[1], w));
        }
      }
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        sums[g][0] = of_run[g][0];
        sums[g][1] = of_run[g][1];
      }
    }
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const __m256i low = sums[g][0], high = sums[g][1];
      const __m256i in_order[2] = {_mm256_permute2x128_si256(low, high, 0x20),
                                   _mm256_permute2x128_si256(low, high, 0x31)};
      HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
        float* at = sum + g * sum_stride + kLanes * i;
        _mm256_storeu_ps(
            at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(in_order[i]),
                                _mm256_set1_ps(weights.scales[j][g]), _mm256_loadu_ps(at)));
      }
    }
  }
}

// ------------------------------------------------------------------ values of 4 bits

// Steps of half a group of 4 rows, kStepOffset more: each 32 bits have one element's, in the order
// of the rows. Elements 0 to 7, and 16 to 23.
HWY_INLINE void load_values(const uint8_t* const* rows, __m256i* steps) {
  const auto load = [&](size_t i) HWY_ATTR {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[i]));
  };
  const __m128i ab = _mm_unpacklo_epi8(load(0), load(1)), cd = _mm_unpacklo_epi8(load(2), load(3));
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(ab, cd)),
                                                _mm_unpackhi_epi16(ab, cd), 1);
  steps[0] = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
  steps[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}

template <size_t GT, class T, class Ahead>
HWY_INLINE void add_group(const TileWeights<GT, Q4Group>& weights, size_t j, const RowRuns& runs,
                          size_t n_rows, size_t n_groups, size_t group, float* HWY_RESTRICT sum,
                          size_t sum_stride, Ahead& ahead) {
  const size_t row_bytes = n_groups * sizeof(T);
  constexpr size_t kLines = lines_of(kRowsTogether * sizeof(T) / 2), kSteps = kRowsTogether / 4;
  sum += group * kGroupElements;
  HWY_UNROLL(2) for (size_t half = 0; half < 2; ++half, sum += kLanes) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const __m256 offset = _mm256_set1_ps(weights.offsets[j][g]);
      HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
        float* at = sum + g * sum_stride + 16 * i;
        _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), offset));
      }
    }
    for (size_t r = 0; r < n_rows; r += kRowsTogether) {
      const auto row = [&](size_t i) HWY_ATTR {
        return runs.first[(r + i) / kRunRows] + i % kRunRows * row_bytes + group * sizeof(T) +
               offsetof(T, q) + 8 * half;
      };
      const uint8_t* rows[4] = {row(0), row(16), row(8), row(24)};
      const auto lines = ahead.template take<kLines>();
      // A lane adds 16 products of up to 15 * 127, which fit 16 bits.
      __m256i sums[GT][2];
      HWY_UNROLL(4)
      for (size_t g = 0; g < GT; ++g) sums[g][0] = sums[g][1] = _mm256_setzero_si256();
      HWY_UNROLL(8) for (size_t i = 0; i < kSteps; ++i) {
        HWY_UNROLL(2)
        for (size_t line = i * kLines / kSteps; line < (i + 1) * kLines / kSteps; ++line)
          lines.ask(line);
        __m256i v[2];
        load_values(rows, v);
        HWY_UNROLL(4) for (size_t k = 0; k < 4; ++k) rows[k] += row_bytes;
        HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
          const __m256i w = _mm256_set1_epi32(weights.quads[j][g][r / 4 + i]);
          add_16_bits(sums[g][0], _mm256_maddubs_epi16(v[0], w));
          add_16_bits(sums[g][1], _mm256_maddubs_epi16(v[1], w));
        }
      }
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m256 scale = _mm256_set1_ps(weights.scales[r / kRowsTogether][j][g]);
        HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
          float* at = sum + g * sum_stride + 16 * i;
          const __m256 of_run = _mm256_cvtepi32_ps(widen_pairs(sums[g][i]));
          _mm256_storeu_ps(at, _mm256_fmadd_ps(of_run, scale, _mm256_loadu_ps(at)));
        }
      }
    }
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // HWY_TARGET == HWY_AVX2
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_AVX2_INL_H_
