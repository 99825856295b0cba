// Products of f32 with rows of groups (Q8Group, Q4Group) in integers: of queries with keys, and of
// softmax weights with values. Only where KVASIR_GROUP_PRODUCTS is 1: with AVX2, and with VNNI and
// VBMI of AVX-512.
//
// f32 becomes integers relative to the largest magnitude among the numbers beside it: a query's 8
// bits in a group of 32, as llama.cpp's; a row's softmax weight times its scale 8 bits in 32 rows
// of a tile, over q8_0 with AVX2 16 bits in the tile. So an element of a query is off by at most
// 1 / 254 of that magnitude, a weight times a scale by 1 / 251 or 1 / 21844, over q8_0 with AVX-512
// by 1 / 502. Sums of a group's products, and of those of the rows that share a magnitude, are
// exact.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#undef KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#else
#define KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
#endif

#include <cstring>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"

#undef KVASIR_GROUP_PRODUCTS
#if KVASIR_QUAD_DOT || (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#define KVASIR_GROUP_PRODUCTS 1
#else
#define KVASIR_GROUP_PRODUCTS 0
#endif

#if KVASIR_GROUP_PRODUCTS
namespace kvasir::kernels::HWY_NAMESPACE {

inline constexpr size_t kRunRows = 16;

// The rows of a tile, of whole groups, in runs of 16 that lie behind each other: loads need no
// pointer per row, which would take as many loads as the rows.
struct RowRuns {
  const uint8_t* first[kTileTokens / kRunRows];  // up to the next multiple of kRowsTogether
};

// Products take as many rows together, or a divisor of them. Weights of 8 bits of as many have one
// scale.
inline constexpr size_t kRowsTogether = 2 * kRunRows;

// Runs of other rows are copied to `copies` [kTileTokens, row_bytes], zeros behind the last row.
inline RowRuns runs_of(const TileRows& rows, uint8_t* copies) {
  static_assert(sizeof(const uint8_t*) == sizeof(uint64_t));
  const hn::ScalableTag<uint64_t> d;
  const auto* addresses = reinterpret_cast<const uint64_t*>(rows.rows);
  const size_t row_bytes = rows.row_bytes;
  HWY_ALIGN uint64_t offsets[kRunRows];
  for (size_t i = 0; i < kRunRows; ++i) offsets[i] = i * row_bytes;
  RowRuns runs;
  for (size_t r = 0; r < hwy::RoundUpTo(rows.n, kRowsTogether); r += kRunRows) {
    const uint8_t*& first = runs.first[r / kRunRows];
    if (r + kRunRows <= rows.n) {
      first = rows[r];
      if (rows.in_one_piece) continue;
      const auto begin = hn::Set(d, addresses[r]);
      auto differs = hn::Zero(d);
      HWY_UNROLL(4) for (size_t i = 0; i < kRunRows; i += hn::Lanes(d)) {
        const auto expected = hn::Add(begin, hn::Load(d, offsets + i));
        differs = hn::Or(differs, hn::Xor(expected, hn::LoadU(d, addresses + r + i)));
      }
      if (hn::AllTrue(d, hn::Eq(differs, hn::Zero(d)))) continue;
    }
    uint8_t* copy = copies + r * row_bytes;
    first = copy;
    for (size_t i = r; i < r + kRunRows; ++i, copy += row_bytes) {
      if (i < rows.n) {
        std::memcpy(copy, rows[i], row_bytes);
      } else {
        std::memset(copy, 0, row_bytes);
      }
    }
  }
  return runs;
}

// Whether lines of rows behind the next ones are asked for while there are no products, too. Over
// q8_0 a third of the time has none, and two cores that do the same at the same time would leave
// memory with nothing to do meanwhile: from memory q8_0 takes 0.82 of the time, q4_0, which does
// not wait for memory, 1.02 (Zen 4). Not measured with AVX2.
template <class T>
inline constexpr bool kAsksBeside = KVASIR_QUAD_DOT == 1 && std::is_same_v<T, Q8Group>;

// 32 elements of a query: scale * step, signed bytes, four to a word.
struct QueryGroup {
  uint32_t steps[8];
  float scale;
  int32_t correction;  // what the offset of keys adds to a sum of products, negated
};

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_GROUP_PRODUCTS
HWY_AFTER_NAMESPACE();

// Each is empty for the targets of the other: a header that only some targets include would be
// taken for one that this target has had.
#include "kernels/group_products_avx2-inl.h"
#include "kernels/group_products_avx512-inl.h"

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
#if KVASIR_GROUP_PRODUCTS
namespace kvasir::kernels::HWY_NAMESPACE {

// fn(n_groups), for heads in fours with a count that the compiler knows where rows have 64 or 128
// elements, as most do: addresses of a run's rows are constants then. The kernel alone takes 0.89
// of the time over q8_0 of 128 in the second cache, 0.98 over q4_0 (Emerald Rapids).
template <size_t GT, class Fn>
HWY_INLINE void with_known_count(size_t n_groups, const Fn& fn) {
  if (GT == 4 && n_groups == 4) return fn(size_t{4});
  if (GT == 4 && n_groups == 2) return fn(size_t{2});
  fn(n_groups);
}

// sum[g * sum_stride + i] += sum_r p[g * kTileTokens + r] * element i of row r.
//   p, most  as split_weights() takes them; only weights of 16 bits need `most`
//   scales   as gather_scales() writes those of the rows
//   beside   lines that split_weights() asks for, or null
template <size_t GT, class T, class Ahead>
HWY_INLINE void add_groups(const float* HWY_RESTRICT p, const float* most, const RowRuns& runs,
                           size_t n_rows, const uint16_t* scales, size_t n_groups,
                           float* HWY_RESTRICT sum, size_t sum_stride, LinesAhead* beside,
                           Ahead& ahead) {
  TileWeights<GT, T> weights;
  size_t group = 0;
  const auto add = [&]<size_t kGroups>() {
    split_weights<GT, kGroups, T>(p, most, n_rows, scales + group * kRunRows, n_groups * kRunRows,
                                  weights, beside);
    for (size_t j = 0; j < kGroups; ++j, ++group)
      add_group<GT, T>(weights, j, runs, n_rows, n_groups, group, sum, sum_stride, ahead);
  };
  while (group + 4 <= n_groups) add.template operator()<4>();
  if (group + 2 <= n_groups) add.template operator()<2>();
  if (group < n_groups) add.template operator()<1>();
}

// The same sums in f32, of n_heads heads, where takes_scales() says no.
template <class T>
HWY_NOINLINE void add_rows_in_f32(const float* HWY_RESTRICT p, size_t n_heads, const RowRuns& runs,
                                  size_t n_rows, size_t n_groups, float* HWY_RESTRICT sum,
                                  size_t sum_stride) {
  const F32 d;
  for (size_t r = 0; r < n_rows; ++r) {
    const T* row = reinterpret_cast<const T*>(runs.first[r / kRunRows]) + r % kRunRows * n_groups;
    for (size_t i = 0; i < n_groups * kGroupElements; i += kLanes) {
      const VecF32 v = load_at(d, row, i);
      for (size_t g = 0; g < n_heads; ++g) {
        float* at = sum + g * sum_stride + i;
        hn::Store(hn::MulAdd(hn::Set(d, p[g * kTileTokens + r]), v, hn::Load(d, at)), d, at);
      }
    }
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
#endif  // KVASIR_GROUP_PRODUCTS
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_GROUP_PRODUCTS_INL_H_
