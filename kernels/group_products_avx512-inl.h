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

template <size_t kGroups, class T>
HWY_INLINE void gather_scales_of(const RowRuns& runs, size_t n_rows, uint16_t* scales) {
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
    HWY_UNROLL(2) for (size_t i = 0; i < kGroups / 2; ++i, scales += 32) {
      const __m512i places = _mm512_load_si512(kPlaces[i].data());
      _mm512_storeu_si512(scales, _mm512_permutex2var_epi16(a, places, b));
    }
  }
}

// scales [runs of the rows, n_groups, kRunRows], up to an even number of runs.
template <class T>
HWY_NOINLINE void gather_scales(const RowRuns& runs, size_t n_rows, size_t n_groups,
                                uint16_t* HWY_RESTRICT scales) {
  const size_t n = hwy::RoundUpTo(n_rows, kRowsTogether);
  if (n_groups == 4) return gather_scales_of<4, T>(runs, n, scales);
  if (n_groups == 2) return gather_scales_of<2, T>(runs, n, scales);
  for (size_t r = 0; r < n; ++r) {
    const auto* row =
        reinterpret_cast<const T*>(runs.first[r / kRunRows] + r % kRunRows * runs.row_bytes);
    uint16_t* to = scales + r / kRunRows * n_groups * kRunRows + r % kRunRows;
    for (size_t group = 0; group < n_groups; ++group) to[group * kRunRows] = row[group].scale;
  }
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

// Lanes of 16 bytes: the first of rows 0, 4, 8 and 12 from `row` on.
HWY_INLINE __m512i every_fourth(const uint8_t* row, size_t row_bytes) {
  const auto load = [&](size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i * row_bytes));
  };
  __m512i z = _mm512_castsi128_si512(load(0));
  z = _mm512_inserti32x4(z, load(4), 1);
  z = _mm512_inserti32x4(z, load(8), 2);
  return _mm512_inserti32x4(z, load(12), 3);
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
  const size_t row_bytes = runs.row_bytes;
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

// Lane i: the low 16 bits of first's, and above them those of second's.
HWY_INLINE __m512i in_pairs(__m512i first, __m512i second) {
  return _mm512_mask_mov_epi16(_mm512_slli_epi32(second, 16), 0x55555555, first);
}

// The weights of GT heads in kGroups groups: those of a head and a group alone are a long chain.
//   p       [GT, kTileTokens], in [0, most] and 0 or NaN behind n_rows up to a multiple of 16
//   most    [GT]
//   scales  [.., kRunRows] of each run, `stride` from run to run
template <size_t GT, size_t kGroups, class T>
HWY_NOINLINE void split_weights(const float* p, const float* most, size_t n_rows,
                                const uint16_t* scales, size_t stride, GroupWeights (*out)[GT]) {
  static_assert(GT <= 4 && kGroups <= 4);
  constexpr bool kSums = std::is_same_v<T, Q4Group>;
  // Of heads in lanes 0 to 3, of groups from lane 4 on.
  alignas(64) float largest[kLanes] = {}, to[kLanes], from[kLanes];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) largest[g] = most[g];
  HWY_UNROLL(4)
  for (size_t j = 0; j < kGroups; ++j)
    largest[4 + j] = largest_scale(scales + j * kRunRows, n_rows, stride);
  const IntegerScales factors =
      integer_scales(_mm512_castps_si512(_mm512_load_ps(largest)), _mm512_set1_ps(kLargestInteger));
  _mm512_store_ps(to, factors.to);
  _mm512_store_ps(from, factors.from);
  __m512i sum[kGroups][GT];
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) sum[j][g] = _mm512_setzero_si512();
  }
  for (size_t r = 0; r < n_rows; r += 32) {
    const __mmask16 has_second = r + kRunRows < n_rows ? 0xffff : 0;
    __m512i of_head[GT];
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const float* of_rows = p + g * kTileTokens + r;
      const __m512 factor = _mm512_set1_ps(to[g]);
      const __m512 second = _mm512_maskz_loadu_ps(has_second, of_rows + kRunRows);
      of_head[g] =
          in_pairs(to_integers(_mm512_load_ps(of_rows), factor), to_integers(second, factor));
    }
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      const uint16_t* of_run = scales + r / kRunRows * stride + j * kRunRows;
      const __m512 factor = _mm512_set1_ps(to[4 + j]);
      const __m512i of_group = in_pairs(to_integers(load_scales(of_run), factor),
                                        to_integers(load_scales(of_run + stride), factor));
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i both = _mm512_mulhrs_epi16(of_head[g], of_group);
        if constexpr (kSums) add_pairs(sum[j][g], both, _mm512_set1_epi16(1));
        _mm512_store_si512(out[j][g].pairs + r / 2, both);
      }
    }
  }
  alignas(64) int32_t sums[kLanes];
  if constexpr (kSums) {
    __m512i all[kLanes] = {};
    HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) all[j * 4 + g] = sum[j][g];
    }
    _mm512_store_si512(
        sums, reduce_integers(all, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
  }
  HWY_UNROLL(4) for (size_t j = 0; j < kGroups; ++j) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      out[j][g].scale = from[g] * from[4 + j] * kProductDivisor;
      if constexpr (kSums) out[j][g].sum = sums[j * 4 + g];
    }
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
HWY_INLINE void add_group(const GroupWeights* weights, const RowRuns& runs, size_t n_rows,
                          size_t group, float* HWY_RESTRICT sum, size_t sum_stride, Ahead& ahead) {
  // Sums of even and of odd pairs of rows: one alone would wait for its product before.
  __m512i even[GT][2], odd[GT][2];
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    even[g][0] = even[g][1] = odd[g][0] = odd[g][1] = _mm512_setzero_si512();
  }
  for (size_t r = 0; r < n_rows; r += 32) {
    const uint8_t* a = runs.first[r / kRunRows] + group * sizeof(T);
    const uint8_t* b = runs.first[r / kRunRows + 1] + group * sizeof(T);
    const auto add_rows = [&](size_t i, __m512i(&to)[GT][2]) {
      __m512i v[2];
      load_values(*reinterpret_cast<const T*>(a), *reinterpret_cast<const T*>(b), v);
      a += runs.row_bytes;
      b += runs.row_bytes;
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        const __m512i w = _mm512_set1_epi32(weights[g].pairs[r / 2 + i]);
        add_pairs(to[g][0], v[0], w);
        add_pairs(to[g][1], v[1], w);
      }
    };
    constexpr size_t kLines = lines_of(32 * sizeof(T)), kEach = kLines / 8;
    static_assert(kLines == 8 * kEach + 1);
    const auto lines = ahead.template take<kLines>();
    lines.ask(kLines - 1);
    for (size_t i = 0; i < 16; i += 2) {
      HWY_UNROLL(2) for (size_t j = 0; j < kEach; ++j) lines.ask(i / 2 * kEach + j);
      add_rows(i, even);
      add_rows(i + 1, odd);
    }
  }
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    const bool is_nibble = std::is_same_v<T, Q4Group>;
    const __m512i offset = _mm512_set1_epi32(is_nibble ? -kStepOffset<T> * weights[g].sum : 0);
    HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
      float* at = sum + g * sum_stride + group * kGroupElements + 16 * i;
      const __m512i of_tile = _mm512_add_epi32(_mm512_add_epi32(even[g][i], odd[g][i]), offset);
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_tile),
                                           _mm512_set1_ps(weights[g].scale), _mm512_loadu_ps(at)));
    }
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_QUAD_DOT
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_AVX512_INL_H_
