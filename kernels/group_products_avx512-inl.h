// Products with rows of groups in integers, with VNNI and VBMI of AVX-512. Included by
// group_products-inl.h alone.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_
#undef KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_
#else
#define KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_
#endif

#include <array>
#include <limits>

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
#if KVASIR_QUAD_DOT
namespace kvasir::kernels::HWY_NAMESPACE {

// ------------------------------------------------------------------ instructions

// sum += the four products of unsigned with signed bytes, in each lane. gcc 12 copies the sum of
// _mm512_dpbusd_epi32 before and after, and makes an instruction of AVX-VNNI, which Zen 4 lacks, of
// _mm256_dpbusd_epi32.
template <class V>
HWY_INLINE void add_quads(V& sum, V bytes, V signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

HWY_INLINE __m512 load_scales(const uint16_t* scales) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
}

// ------------------------------------------------------------------ scales of rows

// Where scales_of() puts the scale of group i.
template <class T>
constexpr size_t place_of_scale(size_t i) {
  static_assert(sizeof(T) % 4 == 2, "32 groups have their scales in 32 places of a line");
  return i * sizeof(T) % 64 / 2;
}

// The scales of 32 groups that lie behind each other: each in the place that it has in its line.
template <class T>
HWY_INLINE __m512i scales_of(const uint8_t* groups) {
  constexpr size_t kLines = 32 * sizeof(T) / 64;
  alignas(64) static constexpr auto kPicks = [] {
    std::array<std::array<uint16_t, 32>, kLines> picks{};
    for (size_t i = 0; i < 32; ++i) picks[i * sizeof(T) / 64][place_of_scale<T>(i)] = 0xffff;
    return picks;
  }();
  __m512i scales = _mm512_loadu_si512(groups);
  HWY_UNROLL(16) for (size_t line = 1; line < kLines; ++line) {
    constexpr int kSecondPicksThird = 0xb8;
    scales = _mm512_ternarylogic_epi32(scales, _mm512_load_si512(kPicks[line].data()),
                                       _mm512_loadu_si512(groups + 64 * line), kSecondPicksThird);
  }
  return scales;
}

// Lines that are asked for beside the products, in a third of the time: with the scales of kGroups
// groups of 16 rows, and with their weights of 32.
template <size_t kGroups>
inline constexpr size_t kLinesWithScales = 3 * kGroups / 2;
template <size_t kGroups>
inline constexpr size_t kLinesWithWeights = 3 * kGroups;

template <size_t kGroups, class T>
HWY_INLINE void gather_scales_of(const RowRuns& runs, size_t n_rows, uint16_t* scales,
                                 LinesAhead* beside) {
  static_assert(kGroups == 2 || kGroups == 4);
  alignas(64) static constexpr auto kPlaces = [] {
    std::array<std::array<uint16_t, 32>, kGroups / 2> places{};
    for (size_t i = 0; i < 32 * kGroups / 2; ++i) {
      const size_t group = i / kRunRows, at = i % kRunRows * kGroups + group;
      places[i / 32][i % 32] = static_cast<uint16_t>(place_of_scale<T>(at) + at / 32 * 32);
    }
    return places;
  }();
  for (size_t r = 0; r < n_rows; r += kRunRows) {
    const uint8_t* first = runs.first[r / kRunRows];
    const __m512i a = scales_of<T>(first);
    const __m512i b = kGroups == 4 ? scales_of<T>(first + 32 * sizeof(T)) : a;
    if (kAsksBeside<T> && beside) beside->ask<kLinesWithScales<kGroups>>();
    HWY_UNROLL(2) for (size_t i = 0; i < kGroups / 2; ++i, scales += 32) {
      const __m512i places = _mm512_load_si512(kPlaces[i].data());
      _mm512_storeu_si512(scales, _mm512_permutex2var_epi16(a, places, b));
    }
  }
}

// scales [runs of the rows, n_groups, kRunRows], up to an even number of runs. Asks for lines of
// `beside`, unless null.
template <class T>
HWY_NOINLINE void gather_scales(const RowRuns& runs, size_t n_rows, size_t n_groups,
                                uint16_t* HWY_RESTRICT scales, LinesAhead* beside) {
  const size_t n = hwy::RoundUpTo(n_rows, kRowsTogether);
  if (n_groups == 4) return gather_scales_of<4, T>(runs, n, scales, beside);
  if (n_groups == 2) return gather_scales_of<2, T>(runs, n, scales, beside);
  for (size_t r = 0; r < n; ++r) {
    const T* row = reinterpret_cast<const T*>(runs.first[r / kRunRows]) + r % kRunRows * n_groups;
    uint16_t* to = scales + r / kRunRows * n_groups * kRunRows + r % kRunRows;
    for (size_t group = 0; group < n_groups; ++group) to[group * kRunRows] = row[group].scale;
  }
}

// Signed bytes are values as they lie, where their weights are bytes without a sign.
template <class T>
inline constexpr bool kNeedsPositiveScales = std::is_same_v<T, Q8Group>;

// Whether add_groups() takes values with these scales, a multiple of 32 of them. No writer of q8_0
// is known that gives a group a negative scale.
template <class T>
HWY_INLINE bool takes_scales(const uint16_t* scales, size_t n) {
  if constexpr (!kNeedsPositiveScales<T>) return true;
  __m512i bits = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 32) bits = _mm512_or_si512(bits, _mm512_loadu_si512(scales + i));
  return _mm512_movepi16_mask(bits) == 0;
}

// ------------------------------------------------------------------ f32 to integers

// Factors that bring numbers up to `largest`, as bits, to integers up to `most`, and back. What is
// no finite number comes back as NaN, numbers below 1e-34 as 0.
struct IntegerScales {
  __m512 to, from;
};
HWY_INLINE IntegerScales integer_scales(__m512i largest, __m512 most) {
  using Limits = std::numeric_limits<float>;
  const __m512 size = _mm512_castsi512_ps(largest), limit = _mm512_set1_ps(Limits::max());
  const __m512 to = _mm512_div_ps(most, size);
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

// q [32] times `factor`
template <class T>
HWY_INLINE void round_query(const float* q, float factor, QueryGroup* out) {
  const __m512 f = _mm512_set1_ps(factor);
  const __m512 v[2] = {_mm512_mul_ps(f, _mm512_loadu_ps(q)),
                       _mm512_mul_ps(f, _mm512_loadu_ps(q + 16))};
  const __m512i high = larger_magnitude(larger_magnitude(_mm512_setzero_si512(), v[0]), v[1]);
  const IntegerScales s =
      integer_scales(_mm512_set1_epi32(_mm512_reduce_max_epi32(high)), _mm512_set1_ps(127.0f));
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

// Lanes of 16 bytes, from at(0), at(1), at(2) and at(3). Two halves first: Zen's vectors of 64
// bytes take twice the time of those of 32.
template <class At>
HWY_INLINE __m512i join_quarters(const At& at) {
  const auto half = [&](size_t i) {
    const auto load = [](const uint8_t* from) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load(at(i))), load(at(i + 1)), 1);
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(2), 1);
}

// The first 16 bytes of rows 0, 4, 8 and 12 from `row` on.
HWY_INLINE __m512i every_fourth(const uint8_t* row, size_t row_bytes) {
  return join_quarters([&](size_t i) { return row + 4 * i * row_bytes; });
}

// z[i] = every_fourth() from row i on -> z[i], lane r: bytes [4 i, 4 i + 4) of row r.
HWY_INLINE void transpose_words(__m512i* z) {
  const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
  const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), e = _mm512_unpackhi_epi32(z[2], z[3]);
  z[0] = _mm512_unpacklo_epi64(a, c);
  z[1] = _mm512_unpackhi_epi64(a, c);
  z[2] = _mm512_unpacklo_epi64(b, e);
  z[3] = _mm512_unpackhi_epi64(b, e);
}

// Elements 16 half to 16 half + 3 of the group whose words are given, steps plus kStepOffset.
template <class T>
HWY_INLINE __m512i key_steps(__m512i word, [[maybe_unused]] size_t half) {
  if constexpr (std::is_same_v<T, Q8Group>) return _mm512_xor_si512(word, _mm512_set1_epi8(-128));
  return _mm512_and_si512(half == 0 ? word : _mm512_srli_epi16(word, 4), _mm512_set1_epi8(15));
}

// dots[g * kTileTokens + r] = q_g . row r for n_rows rows and GT query heads. Two vectors of keys
// share each word of q: Zen 5 takes fewer words from memory than it multiplies. The words of the
// next 16 bytes of the rows are loaded and transposed between the products of these: behind them,
// they would wait for a place among the instructions that wait for products.
//   q       [GT, n_groups]
//   dots    written up to the next multiple of 32 behind n_rows
//   scales  as gather_scales() writes those of the rows
template <size_t GT, class T, class Ahead>
HWY_INLINE void dot_groups(const QueryGroup* q, const RowRuns& runs, size_t n_rows,
                           const uint16_t* scales, size_t n_groups, float* HWY_RESTRICT dots,
                           Ahead& ahead) {
  constexpr size_t kParts = std::is_same_v<T, Q8Group> ? 2 : 1;  // of 16 bytes, of a group
  constexpr size_t kHalves = 2 / kParts;                         // of a group, in a part
  constexpr size_t kLines = lines_of(32 * sizeof(T));
  const size_t row_bytes = n_groups * sizeof(T);
  __m512i words[2][4];
  HWY_UNROLL(2) for (size_t v = 0; v < 2; ++v) {
    HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
      words[v][i] = every_fourth(runs.first[v] + i * row_bytes + offsetof(T, q), row_bytes);
    }
    transpose_words(words[v]);
  }
  for (size_t r = 0; r < n_rows; r += 32) {
    __m512 dot[GT][2];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) dot[g][0] = dot[g][1] = _mm512_setzero_ps();
    for (size_t group = 0; group < n_groups; ++group, scales += kRunRows) {
      __m512i sum[GT][2];
      const auto lines = ahead.template take<kLines>();
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        sum[g][0] = sum[g][1] = _mm512_set1_epi32(q[g * n_groups + group].correction);
      }
      HWY_UNROLL(2) for (size_t part = 0; part < kParts; ++part) {
        // Behind the last come its own once more.
        size_t of_next = r / kRunRows;
        size_t at = group * sizeof(T) + offsetof(T, q) + 16 * part;
        if (part + 1 < kParts) {
          at += 16;
        } else if (group + 1 < n_groups) {
          at += sizeof(T) - 16 * part;
        } else if (r + 32 < n_rows) {
          of_next += 2;
          at = offsetof(T, q);
        }
        const uint8_t* from[2] = {runs.first[of_next] + at, runs.first[of_next + 1] + at};
        __m512i next[2][4];
        HWY_UNROLL(2) for (size_t half = 0; half < kHalves; ++half) {
          HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
            HWY_UNROLL(2) for (size_t v = 0; v < kParts; ++v) {
              const size_t to = kParts == 2 ? v : half;
              next[to][i] = every_fourth(from[to] + i * row_bytes, row_bytes);
            }
            const size_t step = 4 * (part + half) + i;
            HWY_UNROLL(3)
            for (size_t line = step * kLines / 8; line < (step + 1) * kLines / 8; ++line) {
              lines.ask(line);
            }
            const __m512i keys[2] = {key_steps<T>(words[0][i], half),
                                     key_steps<T>(words[1][i], half)};
            HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
              const uint32_t steps = q[g * n_groups + group].steps[step];
              const __m512i of_q = _mm512_set1_epi32(static_cast<int32_t>(steps));
              add_quads(sum[g][0], keys[0], of_q);
              add_quads(sum[g][1], keys[1], of_q);
            }
          }
        }
        HWY_UNROLL(2) for (size_t v = 0; v < 2; ++v) {
          transpose_words(next[v]);
          HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) words[v][i] = next[v][i];
        }
      }
      HWY_UNROLL(2) for (size_t v = 0; v < 2; ++v) {
        const __m512 scale = load_scales(scales + v * n_groups * kRunRows);
        HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
          const __m512 of_both =
              _mm512_mul_ps(scale, _mm512_set1_ps(q[g * n_groups + group].scale));
          dot[g][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g][v]), of_both, dot[g][v]);
        }
      }
    }
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      _mm512_store_ps(dots + g * kTileTokens + r, dot[g][0]);
      _mm512_store_ps(dots + g * kTileTokens + r + 16, dot[g][1]);
    }
    scales += n_groups * kRunRows;
  }
}

// ------------------------------------------------------------------ weights with values

template <class T>
inline constexpr unsigned kWeightSteps = kNeedsPositiveScales<T> ? 255 : 127;
template <class T>
inline constexpr float kLargestWeight = kNeedsPositiveScales<T> ? 65535.0f : 32767.0f;
template <class T>
inline constexpr float kLargestScale = kWeightSteps<T> * 256.0f;
// That of the instruction in multiply_weights(), and 8 bits that go.
template <class T>
inline constexpr float kProductDivisor = (kLargestWeight<T> + 1.0f) * 256.0f;

template <class T>
HWY_INLINE __m512i multiply_weights(__m512i weights, __m512i scales) {
  return kNeedsPositiveScales<T> ? _mm512_mulhi_epu16(weights, scales)
                                 : _mm512_mulhrs_epi16(weights, scales);
}

// What GT query heads give the rows of a tile in up to 4 groups: softmax weight times the row's
// scale, as scale * integer of 8 bits.
template <size_t GT, class T>
struct TileWeights {
  // Of 32 rows, integers of rows i, 8 + i, 16 + i and 24 + i lie side by side.
  alignas(64) int32_t quads[4][GT][kTileTokens / 4];
  // In lane 4 j + g, of group j and head g.
  alignas(64) float scales[kTileTokens / kRowsTogether][kLanes];
  // What kStepOffset adds to sums of products, negated; nothing where values are as they lie.
  alignas(64) float offsets[kLanes];
};

// lane i: the largest lane of v[i]
HWY_INLINE __m512i largest_lanes(const __m512i* v) {
  VecF32 bits[kLanes];
  HWY_UNROLL(16) for (size_t i = 0; i < kLanes; ++i) bits[i].raw = _mm512_castsi512_ps(v[i]);
  alignas(64) float lanes[kLanes];
  reduce_lanes(bits, lanes, [](VecF32 a, VecF32 b) {
    return VecF32{_mm512_castsi512_ps(
        _mm512_max_epu32(_mm512_castps_si512(a.raw), _mm512_castps_si512(b.raw)))};
  });
  return _mm512_load_si512(lanes);
}

// Lane i: the low 16 bits of first's, and above them those of second's.
HWY_INLINE __m512i in_pairs(__m512i first, __m512i second) {
  return _mm512_mask_mov_epi16(_mm512_slli_epi32(second, 16), 0x55555555, first);
}

// The largest magnitudes among kRowsTogether rows of each run: of weights of heads in lanes 0 to 3,
// of scales of groups from lane 4 on; lanes from 8 on of the run after it.
//   p, scales  as for split_weights()
template <size_t GT, size_t kGroups>
HWY_INLINE __m512i largest_of_runs(const float* p, size_t n_rows, const uint16_t* scales,
                                   size_t stride) {
  __m512i all[kLanes] = {};
  HWY_UNROLL(2) for (size_t run = 0; run < 2; ++run, p += kRowsTogether, scales += 2 * stride) {
    if (run * kRowsTogether >= n_rows) break;
    const __mmask16 has_second = run * kRowsTogether + kRunRows < n_rows ? 0xffff : 0;
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const float* of_rows = p + g * kTileTokens;
      // As bits: NaN of either sign is larger than all.
      all[8 * run + g] = _mm512_max_epu32(_mm512_castps_si512(_mm512_load_ps(of_rows)),
                                          _mm512_maskz_loadu_epi32(has_second, of_rows + kRunRows));
    }
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      const auto load = [&](size_t i) {
        const auto* at = reinterpret_cast<const __m256i*>(scales + i * stride + j * kRunRows);
        return _mm256_and_si256(_mm256_loadu_si256(at), _mm256_set1_epi16(0x7fff));
      };
      all[8 * run + 4 + j] =
          _mm512_castps_si512(_mm512_cvtph_ps(_mm256_max_epu16(load(0), load(1))));
    }
  }
  return largest_lanes(all);
}

// Factors of weights and of scales, as largest_of_runs() orders them, and scales of their products
// in two runs, as TileWeights has them.
template <class T>
HWY_INLINE void scale_runs(__m512i largest, float* factors, float (*scales)[kLanes]) {
  const __m512 most = _mm512_mask_mov_ps(_mm512_set1_ps(kLargestWeight<T>), 0xf0f0,
                                         _mm512_set1_ps(kLargestScale<T>));
  const IntegerScales s = integer_scales(largest, most);
  _mm512_store_ps(factors, s.to);
  const __m512i group = _mm512_setr_epi32(4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
  const __m512 from = _mm512_mul_ps(
      s.from, _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), 0x0f0f, _mm512_set1_ps(kProductDivisor<T>)));
  _mm512_store_ps(scales[0], _mm512_mul_ps(_mm512_shuffle_f32x4(from, from, 0x00),
                                           _mm512_permutexvar_ps(group, from)));
  const __m512i of_second = _mm512_add_epi32(group, _mm512_set1_epi32(8));
  _mm512_store_ps(scales[1], _mm512_mul_ps(_mm512_shuffle_f32x4(from, from, 0xaa),
                                           _mm512_permutexvar_ps(of_second, from)));
}

// The weights of GT heads in kGroups groups: those of a head and a group alone are a long chain.
// Asks for lines of `beside`, unless null.
//   p       [GT, kTileTokens], positive; 0 or NaN behind n_rows up to a multiple of 16
//   scales  [.., kRunRows] of each run, `stride` from run to run
template <size_t GT, size_t kGroups, class T>
HWY_NOINLINE void split_weights(const float* p, [[maybe_unused]] const float* most, size_t n_rows,
                                const uint16_t* scales, size_t stride, TileWeights<GT, T>& weights,
                                LinesAhead* beside) {
  static_assert(GT <= 4 && kGroups <= 4);
  constexpr size_t kFactors = 8;  // of a run
  alignas(64) float factors[kTileTokens / kRowsTogether * kFactors];
  for (size_t r = 0, run = 0; r < n_rows; r += 2 * kRowsTogether, run += 2) {
    const __m512i largest =
        largest_of_runs<GT, kGroups>(p + r, n_rows - r, scales + r / kRunRows * stride, stride);
    scale_runs<T>(largest, factors + run * kFactors, weights.scales + run);
  }
  __m256 sum[kGroups][GT];
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) sum[j][g] = _mm256_setzero_ps();
  }
  for (size_t r = 0; r < n_rows; r += kRowsTogether) {
    const float* of_run = factors + r / kRowsTogether * kFactors;
    const __mmask16 has_second = r + kRunRows < n_rows ? 0xffff : 0;
    __m512i of_head[GT];
    if (kAsksBeside<T> && beside) beside->ask<kLinesWithWeights<kGroups>>();
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const float* of_rows = p + g * kTileTokens + r;
      const __m512 factor = _mm512_set1_ps(of_run[g]);
      const __m512 second = _mm512_maskz_loadu_ps(has_second, of_rows + kRunRows);
      of_head[g] =
          in_pairs(to_integers(_mm512_load_ps(of_rows), factor), to_integers(second, factor));
    }
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      const uint16_t* at = scales + r / kRunRows * stride + j * kRunRows;
      const __m512 factor = _mm512_set1_ps(of_run[4 + j]);
      const __m512i of_group = in_pairs(to_integers(load_scales(at), factor),
                                        to_integers(load_scales(at + stride), factor));
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        // Of 16 bits the upper 8, rounded: bytes 1 and 3 of each lane.
        const __m512i both =
            _mm512_add_epi16(multiply_weights<T>(of_head[g], of_group), _mm512_set1_epi16(128));
        const __m256i low = _mm256_srli_epi16(_mm512_castsi512_si256(both), 8);
        constexpr int kFirstOrPickedSecond = 0xf8;
        const __m256i quads = _mm256_ternarylogic_epi32(
            low, _mm512_extracti64x4_epi64(both, 1), _mm256_set1_epi16(-256), kFirstOrPickedSecond);
        _mm256_store_si256(reinterpret_cast<__m256i*>(weights.quads[j][g] + r / 4), quads);
        if constexpr (kNeedsPositiveScales<T>) continue;
        __m256i of_quads = _mm256_setzero_si256();
        add_quads(of_quads, _mm256_set1_epi8(1), quads);
        const __m256 scale = _mm256_set1_ps(weights.scales[r / kRowsTogether][4 * j + g]);
        sum[j][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(of_quads), scale, sum[j][g]);
      }
    }
  }
  if constexpr (kNeedsPositiveScales<T>) return;
  VecF32 all[kLanes];
  HWY_UNROLL(16) for (size_t i = 0; i < kLanes; ++i) {
    const size_t j = i / 4, g = i % 4;
    all[i].raw = j < kGroups && g < GT ? _mm512_zextps256_ps512(sum[j][g]) : _mm512_setzero_ps();
  }
  alignas(64) float sums[kLanes];
  sum_lanes(all, sums);
  const __m512 negated = _mm512_set1_ps(-float{kStepOffset<T>});
  _mm512_store_ps(weights.offsets, _mm512_mul_ps(_mm512_load_ps(sums), negated));
}

// Steps of 4 rows, in bytes with sign: a lane has one element's, in the order of the rows. Elements
// 0 to 7 and 16 to 23, then the others.
HWY_INLINE void load_values(const Q8Group* const* rows, __m512i* steps) {
  const auto load = [&](size_t i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i]->q));
  };
  const __m512i even = _mm512_inserti64x4(_mm512_castsi256_si512(load(0)), load(2), 1);
  const __m512i odd = _mm512_inserti64x4(_mm512_castsi256_si512(load(1)), load(3), 1);
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 32> order{};
    for (size_t i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + 16 * (i % 2));
    return order;
  }();
  const __m512i places = _mm512_load_si512(kOrder.data());
  const __m512i first = _mm512_unpacklo_epi8(even, odd), second = _mm512_unpackhi_epi8(even, odd);
  steps[0] = _mm512_permutexvar_epi16(places, first);
  steps[1] = _mm512_permutexvar_epi16(places, second);
}
// kStepOffset more, without a sign. Elements 0 to 15, then the others.
HWY_INLINE void load_values(const Q4Group* const* rows, __m512i* steps) {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint8_t, 64> order{};
    for (size_t i = 0; i < 64; ++i) order[i] = static_cast<uint8_t>(i / 4 + 16 * (i % 4));
    return order;
  }();
  const __m512i x = join_quarters([&](size_t i) { return rows[i]->q; });
  const __m512i words = _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.data()), x);
  steps[0] = key_steps<Q4Group>(words, 0);
  steps[1] = key_steps<Q4Group>(words, 1);
}

// Sums of 32 elements, in the order of load_values().
template <class T>
HWY_INLINE __m512 load_sums(const float* sums, size_t i) {
  if (std::is_same_v<T, Q4Group>) return _mm512_loadu_ps(sums + 16 * i);
  const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(sums + 8 * i));
  return _mm512_insertf32x8(low, _mm256_loadu_ps(sums + 16 + 8 * i), 1);
}
template <class T>
HWY_INLINE void store_sums(__m512 x, float* sums, size_t i) {
  if (std::is_same_v<T, Q4Group>) return _mm512_storeu_ps(sums + 16 * i, x);
  _mm256_storeu_ps(sums + 8 * i, _mm512_castps512_ps256(x));
  _mm256_storeu_ps(sums + 16 + 8 * i, _mm512_extractf32x8_ps(x, 1));
}

// sum[g * sum_stride + 32 group + i] += sum_r weight of row r in group j of `weights` * its step i,
// for GT query heads.
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_group(const TileWeights<GT, T>& weights, size_t j, const RowRuns& runs,
                          size_t n_rows, size_t n_groups, size_t group, float* HWY_RESTRICT sum,
                          size_t sum_stride, Ahead& ahead) {
  const size_t row_bytes = n_groups * sizeof(T);
  sum += group * kGroupElements;
  __m512 all[GT][2];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
      all[g][i] = load_sums<T>(sum + g * sum_stride, i);
      if constexpr (!kNeedsPositiveScales<T>)
        all[g][i] = _mm512_add_ps(all[g][i], _mm512_set1_ps(weights.offsets[4 * j + g]));
    }
  }
  for (size_t r = 0; r < n_rows; r += kRowsTogether) {
    const auto row = [&](size_t i) {
      return runs.first[(r + i) / kRunRows] + i % kRunRows * row_bytes + group * sizeof(T);
    };
    const uint8_t* rows[4] = {row(0), row(8), row(16), row(24)};
    __m512i of_run[GT][2];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      of_run[g][0] = of_run[g][1] = _mm512_setzero_si512();
    }
    constexpr size_t kSteps = kRowsTogether / 4;
    constexpr size_t kLines = lines_of(kRowsTogether * sizeof(T)), kEach = kLines / kSteps;
    static_assert(kLines == kSteps * kEach + 1);
    const auto lines = ahead.template take<kLines>();
    lines.ask(kLines - 1);
    HWY_UNROLL(2) for (size_t i = 0; i < kSteps; ++i) {
      HWY_UNROLL(2) for (size_t line = 0; line < kEach; ++line) lines.ask(i * kEach + line);
      __m512i v[2];
      const T* groups[4];
      HWY_UNROLL(4) for (size_t k = 0; k < 4; ++k) {
        groups[k] = reinterpret_cast<const T*>(rows[k]);
        rows[k] += row_bytes;
      }
      load_values(groups, v);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i w = _mm512_set1_epi32(weights.quads[j][g][r / 4 + i]);
        HWY_UNROLL(2) for (size_t half = 0; half < 2; ++half) {
          if constexpr (kNeedsPositiveScales<T>)
            add_quads(of_run[g][half], w, v[half]);
          else
            add_quads(of_run[g][half], v[half], w);
        }
      }
    }
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const __m512 scale = _mm512_set1_ps(weights.scales[r / kRowsTogether][4 * j + g]);
      HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
        all[g][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_run[g][i]), scale, all[g][i]);
      }
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    HWY_UNROLL(2)
    for (size_t i = 0; i < 2; ++i) store_sums<T>(all[g][i], sum + g * sum_stride, i);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_QUAD_DOT
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_
