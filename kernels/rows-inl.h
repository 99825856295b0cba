// Loads of stored rows as f32, and dot products of rows with the queries of a group, per SIMD
// target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_ROWS_INL_H_
#undef KVASIR_KERNELS_ROWS_INL_H_
#else
#define KVASIR_KERNELS_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "kernels/kv_tile.h"
#include "kernels/prefetch_order.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;
inline constexpr size_t kLanes = HWY_LANES(float);
// Sums in registers. AVX-512 has 32 vector registers, the older targets 16. With AVX2 eight sums
// would wait for each other: a CPU makes two in each of the 4 or 5 cycles that one takes.
inline constexpr size_t kDotTile = HWY_TARGET <= HWY_AVX3 ? 16 : HWY_TARGET == HWY_AVX2 ? 12 : 8;

template <class D>
HWY_INLINE hn::Vec<D> load_row(D d, const float* row) {
  return hn::LoadU(d, row);
}

template <class D>
HWY_INLINE hn::Vec<D> load_row(D d, const hwy::bfloat16_t* row) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(row)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D>
HWY_INLINE hn::Vec<D> load_row(D d, const hwy::float16_t* row) {
#if HWY_TARGET <= HWY_AVX2
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), row));
#else
  // Without F16C: the 15 low bits moved into an f32 are the value times 2^-112, subnormals
  // included; infinity and NaN get their exponent back.
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(row)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto finite = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(magnitude, hn::Set(du, 0x7f800000u)));
  const auto value = hn::IfThenElse(hn::Ge(finite, hn::Set(d, 65536.0f)), special, finite);
  return hn::Or(value, hn::BitCast(d, sign));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> load_row(D d, const Fp8E4M3* row) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> du8;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du8, reinterpret_cast<const uint8_t*>(row)));
  const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fu));
  const auto moved = hn::ShiftLeft<20>(magnitude);  // into the fields of an f32, with bias 7
  const auto normal = hn::BitCast(d, hn::Add(moved, hn::Set(du, 120u << 23)));
  // Without the hidden bit: 2^-6 (1 + f / 8) - 2^-6.
  const auto subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(moved, hn::Set(du, 121u << 23))), hn::Set(d, 0x1p-6f));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 8u)));
  const auto is_nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7fu)));
  auto value = hn::IfThenElse(is_subnormal, subnormal, normal);
  value = hn::IfThenElse(is_nan, hn::BitCast(d, hn::Set(du, 0x7fc00000u)), value);
  return hn::Or(value, hn::BitCast(d, sign));
}

// Types whose rows are groups: `row` then points to the row's first group.
template <class T>
concept Grouped = T::kIsGroup;

// Elements [column, column + kLanes) of a row.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_at(D d, const T* row, size_t column) {
  return load_row(d, row + column);
}

// A vector lies inside one group.
template <class D>
HWY_INLINE hn::Vec<D> scale_of(D d, const uint16_t* scale) {
  const hn::CappedTag<float, 4> d4;  // reads on into the group
  return hn::Set(d, hn::GetLane(load_row(d4, reinterpret_cast<const hwy::float16_t*>(scale))));
}

// Elements [at, at + kLanes) of a group, not scaled.
template <class D>
HWY_INLINE hn::Vec<D> steps_at(D d, const Q8Group& group, size_t at) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> di8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(di8, group.q + at)));
}

template <class D>
HWY_INLINE hn::Vec<D> steps_at(D d, const Q4Group& group, size_t at) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> du8;
  const size_t half = kGroupElements / 2;
  const auto pair = hn::PromoteTo(di, hn::LoadU(du8, group.q + at % half));
  const auto nibble = at < half ? hn::And(pair, hn::Set(di, 15)) : hn::ShiftRight<4>(pair);
  return hn::ConvertTo(d, hn::Sub(nibble, hn::Set(di, 8)));
}

template <class D, Grouped T>
HWY_INLINE hn::Vec<D> load_at(D d, const T* row, size_t column) {
  const T& group = row[column / kGroupElements];
  return hn::Mul(steps_at(d, group, column % kGroupElements), scale_of(d, &group.scale));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// The elements of a group, those of load_at(): looked up among the 16 products of step and scale.
HWY_INLINE void load_group(const Q4Group& group, VecF32* first, VecF32* second) {
  alignas(64) static constexpr float kSteps[16] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                   0,  1,  2,  3,  4,  5,  6,  7};
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const hn::Rebind<uint8_t, F32> du8;
  const VecF32 products = hn::Mul(hn::Load(d, kSteps), scale_of(d, &group.scale));
  const auto pairs = hn::PromoteTo(du, hn::LoadU(du8, group.q));
  // The instruction takes the low four bits; Highway would want the others to be zero.
  *first = VecF32{_mm512_permutexvar_ps(pairs.raw, products.raw)};
  *second = VecF32{_mm512_permutexvar_ps(hn::ShiftRight<4>(pairs).raw, products.raw)};
}
#endif

// The n < kLanes elements from `column` on, zeros behind them; reads nothing past the row.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_tail_at(D d, const T* row, size_t column, size_t n) {
  HWY_ALIGN T copy[kLanes] = {};
  for (size_t i = 0; i < n; ++i) copy[i] = row[column + i];
  return load_row(d, copy);
}

// Rows of whole groups are rows of whole vectors.
template <class D, Grouped T>
HWY_INLINE hn::Vec<D> load_tail_at(D d, const T*, size_t, size_t) {
  return hn::Zero(d);
}

template <class T>
constexpr size_t bytes_of_row(size_t n) {
  if constexpr (Grouped<T>) {
    return n / kGroupElements * sizeof(T);
  } else {
    return n * sizeof(T);
  }
}

// fn(T()) with the C++ type of the elements or groups of `type`.
template <class Fn>
HWY_INLINE auto with_row_type(ElementType type, const Fn& fn) {
  switch (type) {
    case ElementType::kF16:
      return fn(hwy::float16_t());
    case ElementType::kBF16:
      return fn(hwy::bfloat16_t());
    case ElementType::kQ8_0:
      return fn(Q8Group());
    case ElementType::kQ4_0:
      return fn(Q4Group());
    case ElementType::kFp8E4M3:
      return fn(Fp8E4M3());
    default:
      return fn(float());
  }
}

// ------------------------------------------------------------------ sums of many vectors at once

#if HWY_TARGET <= HWY_AVX2
// [a | b] by halves: each half holds the pairs of one vector, combined.
template <class Fn>
HWY_INLINE VecF32 join_halves(VecF32 a, VecF32 b, const Fn& fn) {
  const F32 d;
  return fn(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
}
#endif

#if HWY_TARGET <= HWY_AVX3
// x = [a a b b], y = [c c d d] in blocks of 4 lanes -> [a c b d].
template <class Fn>
HWY_INLINE VecF32 join_blocks(VecF32 x, VecF32 y, const Fn& fn) {
  return fn(hn::OddEvenBlocks(y, x), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(x, y)));
}
#endif

// lanes[i] = the lanes of v[i], combined by fn(vector, vector), for kLanes vectors: a transposition
// that combines on the way, 3 instructions per vector where each vector alone takes 8 to 12.
// `lanes` need not be aligned.
template <class Fn>
HWY_INLINE void reduce_lanes(const VecF32* v, float* HWY_RESTRICT lanes,
                             [[maybe_unused]] const Fn& fn) {
  const F32 d;
#if HWY_TARGET == HWY_SCALAR
  hn::StoreU(v[0], d, lanes);
#else
  VecF32 q[4];
  HWY_UNROLL(4) for (size_t i = 0; i < 4; ++i) {
#if HWY_TARGET <= HWY_AVX3
    q[i] = join_blocks(join_halves(v[i], v[i + 8], fn), join_halves(v[i + 4], v[i + 12], fn), fn);
#elif HWY_TARGET <= HWY_AVX2
    q[i] = join_halves(v[i], v[i + 4], fn);
#else
    q[i] = v[i];
#endif
  }
  const hn::Repartition<double, F32> d64;
  const auto a = fn(hn::InterleaveLower(d, q[0], q[1]), hn::InterleaveUpper(d, q[0], q[1]));
  const auto b = fn(hn::InterleaveLower(d, q[2], q[3]), hn::InterleaveUpper(d, q[2], q[3]));
  const auto a64 = hn::BitCast(d64, a);
  const auto b64 = hn::BitCast(d64, b);
  hn::StoreU(fn(hn::BitCast(d, hn::InterleaveLower(d64, a64, b64)),
                hn::BitCast(d, hn::InterleaveUpper(d64, a64, b64))),
             d, lanes);
#endif
}

// lanes[i] = sum of the lanes of v[i]
HWY_INLINE void sum_lanes(const VecF32* v, float* HWY_RESTRICT lanes) {
  reduce_lanes(v, lanes, [](VecF32 a, VecF32 b) { return hn::Add(a, b); });
}

// ------------------------------------------------------------------ q . k for a few rows and heads

// Whether the rows lie in n_pieces pieces of memory, of as many rows each.
inline bool are_pieces(const uint8_t* const* rows, size_t n_rows, size_t row_bytes,
                       size_t n_pieces) {
  const size_t n = n_rows / n_pieces;
  if (n == 0 || n_rows % n_pieces != 0) return false;
  for (size_t r = 0; r < n_rows; r += n)
    if (rows[r + n - 1] != rows[r] + (n - 1) * row_bytes) return false;
  return true;
}

// What take() of the classes below gives to a loop that asks for line after line between its
// products, as many at once would keep them waiting: the lines, or nothing where all have been
// asked for.
struct NextLines {
  const uint8_t* first;
  HWY_INLINE void ask(size_t i) const { prefetch_line(first + 64 * i); }
};
struct NoLines {
  void ask(size_t) const {}
};

// Lines of rows that are read some rows later, asked for one by one between the products: a core
// has about 16 lines on their way from memory, and while all of them wait what lies in the second
// cache waits, too.
class RowsAhead {
 public:
  RowsAhead() = default;  // none
  RowsAhead(const void* const* rows, size_t n_rows, size_t row_bytes)
      : rows_(rows), end_(rows + n_rows), row_bytes_(row_bytes) {}
  template <size_t kLines>
  HWY_INLINE void ask() {
    for (size_t i = 0; i < kLines && rows_ != end_; ++i) {
      prefetch_line(static_cast<const char*>(*rows_) + at_);
      at_ += 64;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      ++rows_;
    }
  }
  void ask_rest() {
    while (rows_ != end_) ask<1>();
  }
  template <size_t kLines>
  HWY_INLINE NoLines take() {
    ask<kLines>();
    return {};
  }

 private:
  const void *const *rows_ = nullptr, *const *end_ = nullptr;
  size_t row_bytes_ = 0, at_ = 0;
};

// The same for rows that lie behind each other.
class LinesAhead {
 public:
  LinesAhead(const uint8_t* first, size_t bytes) : first_(first), at_(first), end_(first + bytes) {}
  // The next kLines lines; once there are fewer, the last kLines. Of fewer in all, some lie behind.
  template <size_t kLines>
  HWY_INLINE NextLines take() {
    const uint8_t* last =
        static_cast<size_t>(end_ - first_) > 64 * kLines ? end_ - 64 * kLines : first_;
    const NextLines lines{at_ < last ? at_ : last};
    at_ = lines.first + 64 * kLines;
    return lines;
  }
  template <size_t kLines>
  HWY_INLINE void ask() {
    const NextLines lines = take<kLines>();
    HWY_UNROLL(8) for (size_t i = 0; i < kLines; ++i) lines.ask(i);
  }
  void ask_rest() {
    for (; at_ < end_; at_ += 64) prefetch_line(at_);
  }
  // Bytes up to the next line, not more than there are.
  size_t n_asked() const { return static_cast<size_t>((at_ < end_ ? at_ : end_) - first_); }
  // While rows that are read now are, group after group.
  struct Group {
    LinesAhead& lines;
    template <size_t kLines>
    HWY_INLINE void ask() {
      lines.ask<kLines>();
    }
    void ask_rest() {}
  };
  Group of_group(size_t, size_t) { return {*this}; }

 private:
  const uint8_t *first_, *at_, *end_;
};

// Lines of rows that are read next, which are in the second cache, into the first; and, from
// memory, lines of the rows behind them: kOfThree for three of the former.
template <size_t kOfThree>
class LinesThroughCaches {
 public:
  template <size_t kLines>
  struct Both {
    NextLines near, far;
    HWY_INLINE void ask(size_t line) const {
      __builtin_prefetch(near.first + 64 * line, 0, 3);
      const size_t of_far = far_lines(line);
      if (of_far < far_lines(line + 1)) far.ask(of_far);
    }
  };
  LinesThroughCaches(LinesAhead near, LinesAhead& far) : near_(near), far_(far) {}
  template <size_t kLines>
  HWY_INLINE Both<kLines> take() {
    return {near_.take<kLines>(), far_.take<far_lines(kLines)>()};
  }

 private:
  static constexpr size_t far_lines(size_t n) { return n * kOfThree / 3; }

  LinesAhead near_;
  LinesAhead& far_;
};

// What is asked for with each group of a tile's rows: as many rows from further on in the array of
// their pointers, which goes on behind the tile.
struct LinkedRows {
  const void* const* rows = nullptr;  // what is asked for with the tile's first row; null: nothing
  size_t row_bytes = 0;
  RowsAhead of_group(size_t first, size_t n) const {
    return rows ? RowsAhead(rows + first, n, row_bytes) : RowsAhead();
  }
};

// The same for the rows of a later tile that lie in 8 pieces of memory, or in fewer, as those of a
// block do, and of eight blocks. A line of each piece in turn is asked for, from the front of one
// and from the back of the next: of pieces of a page each, on Granite Rapids, that takes a tenth
// less time than line after line, or than a page in the order of prefetch_ahead().
class PiecesAhead {
 public:
  // Whether the rows are such pieces, and this CPU gains by them.
  static bool serve(const uint8_t* const* rows, size_t n_rows, size_t row_bytes) {
    return kPrefetchInTurn && are_pieces(rows, n_rows, row_bytes, kMost);
  }
  // n_rows rows that are pieces, asked for while n_now are read
  PiecesAhead(const uint8_t* const* rows, size_t n_rows, size_t row_bytes, size_t n_now) {
    // Two pieces in one page are slower than none.
    constexpr size_t kPage = 4096;
    size_t n_pieces = kMost;
    while (n_pieces > 2 && n_rows / n_pieces * row_bytes < kPage &&
           are_pieces(rows, n_rows, row_bytes, n_pieces / 2))
      n_pieces /= 2;
    const size_t n = n_rows / n_pieces, lines = (n * row_bytes + 63) / 64;
    for (size_t i = 0; i < n_pieces; ++i)
      pieces_[i] = reinterpret_cast<const char*>(rows[i * n]) + (i % 2 ? (lines - 1) * 64 : 0);
    log2_pieces_ = static_cast<unsigned>(std::countr_zero(n_pieces));
    n_ = lines * n_pieces;
    per_row_ = (n_ + n_now - 1) / n_now;
  }
  PiecesAhead& of_group(size_t first, size_t n) {
    end_ = per_row_ * (first + n) < n_ ? per_row_ * (first + n) : n_;
    return *this;
  }
  template <size_t kLines>
  HWY_INLINE void ask() {
    if (at_ >= end_) return;
    HWY_UNROLL(8) for (size_t i = 0; i < kLines; i += 2, at_ += 2) {
      const size_t line = (at_ >> log2_pieces_) * 64, piece = at_ & ((1u << log2_pieces_) - 1);
      __builtin_prefetch(pieces_[piece] + line, 0, 2);
      __builtin_prefetch(pieces_[piece + 1] - line, 0, 2);
    }
  }
  void ask_rest() {
    while (at_ < end_) ask<2>();
  }
  template <size_t kLines>
  HWY_INLINE NoLines take() {
    ask<kLines>();
    return {};
  }

 private:
  static constexpr size_t kMost = 8;

  const char* pieces_[kMost];  // the line of each that is asked for first
  unsigned log2_pieces_;
  size_t n_, per_row_;       // lines, and of them while a row is read
  size_t at_ = 0, end_ = 0;  // the next, and where the group's end
};

// Lines that n bytes of rows are read in.
constexpr size_t lines_of(size_t bytes) { return (bytes + 63) / 64; }
// How many steps of that many bytes ask for lines together: with AVX2 as many as read whole lines,
// up to 4, which gains where steps are shorter than a line (Zen 3). Other targets were measured
// with lines for each step.
constexpr size_t steps_per_lines(size_t bytes) {
  return HWY_TARGET == HWY_AVX2 ? std::min<size_t>(64 / std::gcd(bytes, size_t{64}), 4) : 1;
}

// How many rows of that many bytes are taken together, by one tile of heads after the other. With
// AVX2 a multiple of the rows of each step, at least 12; groups of 1 KiB are no faster (Zen 2).
inline constexpr size_t kMostDotRows = 24;
constexpr size_t rows_together(size_t row_bytes) {
  if (HWY_TARGET != HWY_AVX2) return group_rows(row_bytes);
  return row_bytes <= 256 ? kMostDotRows : kMostDotRows / 2;
}

// Sums of KT rows and GT heads, a whole number of vectors of them: sum[g * KT + r].
template <size_t KT, size_t GT>
inline constexpr size_t kTileSums = hwy::RoundUpTo(KT* GT, kLanes);

// dots[g * dot_stride + r] = the lanes of sum[g * KT + r], added, for the first n_rows rows.
template <size_t KT, size_t GT>
HWY_INLINE void store_sums(const VecF32* sum, size_t n_rows, float* HWY_RESTRICT dots,
                           size_t dot_stride) {
  HWY_ALIGN float lanes[kTileSums<KT, GT>];
  HWY_UNROLL(4)
  for (size_t j = 0; j < kTileSums<KT, GT>; j += kLanes) sum_lanes(sum + j, lanes + j);
  if (n_rows == KT) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      hwy::CopyBytes<KT * sizeof(float)>(lanes + g * KT, dots + g * dot_stride);
    }
    return;
  }
  for (size_t g = 0; g < GT; ++g) {
    for (size_t r = 0; r < n_rows; ++r) dots[g * dot_stride + r] = lanes[g * KT + r];
  }
}

// Adds the products with one group of KT rows. Elements are scaled before they are multiplied: what
// a group holds exactly gives the bits of f32.
//   q [GT, q_stride], from the group's first element on
template <size_t KT, size_t GT, Grouped T>
HWY_INLINE void add_group(const float* HWY_RESTRICT q, size_t q_stride, const T* const* rows,
                          size_t group, VecF32* HWY_RESTRICT sum) {
  const F32 d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<T, Q4Group>) {
    HWY_UNROLL(16) for (size_t r = 0; r < KT; ++r) {
      VecF32 k[2];
      load_group(rows[r][group], &k[0], &k[1]);
      HWY_UNROLL(2) for (size_t i = 0; i < 2; ++i) {
        HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
          sum[g * KT + r] =
              hn::MulAdd(hn::Load(d, q + g * q_stride + i * kLanes), k[i], sum[g * KT + r]);
        }
      }
    }
    return;
  }
#endif
  VecF32 scale[KT];
  HWY_UNROLL(16) for (size_t r = 0; r < KT; ++r) scale[r] = scale_of(d, &rows[r][group].scale);
  HWY_UNROLL(8) for (size_t i = 0; i < kGroupElements; i += kLanes) {
    VecF32 k[KT];
    HWY_UNROLL(16)
    for (size_t r = 0; r < KT; ++r) k[r] = hn::Mul(steps_at(d, rows[r][group], i), scale[r]);
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      const VecF32 qg = hn::Load(d, q + g * q_stride + i);
      HWY_UNROLL(16)
      for (size_t r = 0; r < KT; ++r) sum[g * KT + r] = hn::MulAdd(qg, k[r], sum[g * KT + r]);
    }
  }
}

// Adds the products with elements [i, i + kLanes) of KT rows.
template <size_t KT, size_t GT, class T>
HWY_INLINE void add_column(const float* HWY_RESTRICT q, size_t q_stride, const T* const* rows,
                           size_t i, VecF32* HWY_RESTRICT sum) {
  const F32 d;
  VecF32 k[KT];
  HWY_UNROLL(16) for (size_t r = 0; r < KT; ++r) k[r] = load_at(d, rows[r], i);
  HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
    const VecF32 qg = hn::Load(d, q + g * q_stride + i);
    HWY_UNROLL(16)
    for (size_t r = 0; r < KT; ++r) sum[g * KT + r] = hn::MulAdd(qg, k[r], sum[g * KT + r]);
  }
}

// sum[g * KT + r], its lanes added, = q_g . row_r for KT rows and GT query heads, all in registers:
// each vector of a row is converted once and used GT times, each vector of q is loaded once per KT
// rows.
//   q     [GT, q_stride] f32, zero from head_dim to the next multiple of kLanes
//   rows  [KT] pointers to head_dim elements of T, or to their groups
template <size_t KT, size_t GT, class T, class Ahead>
HWY_INLINE void sum_products(const float* HWY_RESTRICT q, size_t q_stride, const T* const* rows,
                             size_t head_dim, VecF32* HWY_RESTRICT sum, Ahead& ahead) {
  const F32 d;
  HWY_UNROLL(16) for (size_t i = 0; i < kTileSums<KT, GT>; ++i) sum[i] = hn::Zero(d);
  if constexpr (Grouped<T>) {
    for (size_t group = 0; group < head_dim / kGroupElements; ++group) {
      add_group<KT, GT>(q + group * kGroupElements, q_stride, rows, group, sum);
      ahead.template ask<lines_of(KT * sizeof(T))>();
    }
    return;
  }
  size_t i = 0;
  constexpr size_t kBytes = KT * kLanes * sizeof(T), kColumns = steps_per_lines(kBytes);
  for (; i + kColumns * kLanes <= head_dim; i += kColumns * kLanes) {
    if constexpr (!Grouped<T>) ahead.template ask<lines_of(kColumns * kBytes)>();
    HWY_UNROLL(4) for (size_t c = 0; c < kColumns; ++c) {
      add_column<KT, GT>(q, q_stride, rows, i + c * kLanes, sum);
    }
  }
  if constexpr (kColumns > 1) {
    for (; i + kLanes <= head_dim; i += kLanes) add_column<KT, GT>(q, q_stride, rows, i, sum);
  }
  if (i < head_dim) {
    HWY_UNROLL(16) for (size_t r = 0; r < KT; ++r) {
      const VecF32 k = load_tail_at(d, rows[r], i, head_dim - i);
      HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
        sum[g * KT + r] = hn::MulAdd(hn::Load(d, q + g * q_stride + i), k, sum[g * KT + r]);
      }
    }
  }
}

// Where the sums of a step go: their lanes are added at once.
template <size_t GT>
class SumsAtOnce {
 public:
  SumsAtOnce(float* dots, size_t dot_stride) : dots_(dots), dot_stride_(dot_stride) {}
  // sum[g * KT + i] for row first + i, of which the first n exist
  template <size_t KT>
  HWY_INLINE void take(size_t first, size_t n, const VecF32* sum) {
    store_sums<KT, GT>(sum, n, dots_ + first, dot_stride_);
  }
  void finish(size_t) {}

 private:
  float* dots_;
  size_t dot_stride_;
};

// With AVX2 they are kept until those of some steps are added together: sums of one wait for each
// other, and the next step for them, for a third of its time (f16, Zen 2).
template <size_t GT>
class SumsLater {
 public:
  SumsLater(float* dots, size_t dot_stride) : dots_(dots), dot_stride_(dot_stride) {}
  template <size_t KT>
  HWY_INLINE void take(size_t first, size_t, const VecF32* sum) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      HWY_UNROLL(12)
      for (size_t i = 0; i < KT; ++i)
        hn::Store(sum[g * KT + i], F32(), sums_[g] + (first + i) * kLanes);
    }
  }
  // n rows
  HWY_INLINE void finish(size_t n) {
    HWY_UNROLL(4) for (size_t g = 0; g < GT; ++g) {
      float* dots = dots_ + g * dot_stride_;
      size_t r = 0;
      for (; r + kLanes <= n; r += kLanes) add_lanes(sums_[g] + r * kLanes, dots + r);
      if (r == n) continue;
      for (size_t i = n; i < r + kLanes; ++i)
        hn::Store(hn::Zero(F32()), F32(), sums_[g] + i * kLanes);
      float rest[kLanes];
      add_lanes(sums_[g] + r * kLanes, rest);
      std::copy_n(rest, n - r, dots + r);
    }
  }

 private:
  HWY_INLINE static void add_lanes(const float* sums, float* dots) {
    VecF32 v[kLanes];
    HWY_UNROLL(8)
    for (size_t i = 0; i < kLanes; ++i) v[i] = hn::Load(F32(), sums + i * kLanes);
    sum_lanes(v, dots);
  }

  float* dots_;
  size_t dot_stride_;
  // A last step may repeat a row three times.
  HWY_ALIGN float sums_[GT][(kMostDotRows + 3) * kLanes];
};

// Rows per step for GT heads, with AVX2 a divisor of rows_together(): KT * GT sums plus KT
// converted vectors fit the registers.
template <size_t GT>
constexpr size_t dot_row_step() {
  return kDotTile / (GT == 3 && kDotTile == 16 ? 4 : GT);
}

// dots[g * dot_stride + r] = q_g . row_r for up to kMostDotRows rows and GT query heads.
template <size_t GT, class T, class Ahead>
HWY_INLINE void dot_head_tile(const float* HWY_RESTRICT q, size_t q_stride, const T* const* rows,
                              size_t n_rows, size_t head_dim, float* HWY_RESTRICT dots,
                              size_t dot_stride, Ahead& ahead) {
  constexpr size_t kStep = dot_row_step<GT>();
  std::conditional_t<HWY_TARGET == HWY_AVX2, SumsLater<GT>, SumsAtOnce<GT>> sums(dots, dot_stride);
  size_t r = 0;
  for (; r + kStep <= n_rows; r += kStep) {
    VecF32 sum[kTileSums<kStep, GT>];
    sum_products<kStep, GT>(q, q_stride, rows + r, head_dim, sum, ahead);
    sums.template take<kStep>(r, kStep, sum);
  }
  // What is left of a group of long rows, which may be less than a step, is not filled up to one.
  constexpr size_t kRest = kStep < 4 ? kStep : 4;
  for (; r < n_rows; r += kRest) {
    const T* last[kRest];
    for (size_t i = 0; i < kRest; ++i) last[i] = rows[r + i < n_rows ? r + i : n_rows - 1];
    const size_t n = n_rows - r < kRest ? n_rows - r : kRest;
    VecF32 sum[kTileSums<kRest, GT>];
    sum_products<kRest, GT>(q, q_stride, last, head_dim, sum, ahead);
    sums.template take<kRest>(r, n, sum);
  }
  sums.finish(n_rows);
}

// Asks for one row that will be read some rows later. Into the L2 cache, not L1: over many short
// rows the hardware prefetchers reach a third of the read bandwidth, a prefetch to L1 no more
// (its few miss buffers wait for DRAM), this one two to three times as much (measured on Zen 4).
HWY_INLINE void prefetch_row(const void* row, size_t row_bytes) {
  const char* bytes = static_cast<const char*>(row);
  for (size_t b = 0; b < row_bytes; b += 64) __builtin_prefetch(bytes + b, 0, 2);
}

// What is asked for while memory is read that is read once, front to back: as many bytes further
// on, line by line, or the lines of a page in the order 0, 4, ... 60, 1, 5, ....
enum class Ahead { kNothing, kLineByLine, kInTurn };

// fn.operator()<Ahead>() with what serves this CPU; nothing where the memory was read before. The
// order is no branch in a kernel: with one, Zen 5 reads Q8_0 a fifth slower.
template <class Fn>
HWY_INLINE void with_ahead(bool is_new, const Fn& fn) {
  if (!is_new) return fn.template operator()<Ahead::kNothing>();
  if (kPrefetchInTurn) return fn.template operator()<Ahead::kInTurn>();
  fn.template operator()<Ahead::kLineByLine>();
}

// While `bytes` from `at` on are read. Beyond the end nothing happens. How far ahead, and into
// which cache, was measured on Zen 5 (line by line: one page is slower for few rows, two pages or
// the second cache for one row of Q8_0) and on Granite Rapids (in turn: one page and four are the
// same).
template <Ahead kAhead>
HWY_INLINE void prefetch_ahead(const void* at, size_t bytes) {
  constexpr uintptr_t kPage = 4096, kLine = 64, kFourLines = 256;
  const auto begin = reinterpret_cast<uintptr_t>(at);
  if constexpr (kAhead == Ahead::kLineByLine) {
    for (uintptr_t line = hwy::RoundUpTo(begin, kLine); line < begin + bytes; line += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(line + kPage + kPage / 2), 0, 3);
  }
  if constexpr (kAhead == Ahead::kInTurn) {
    for (uintptr_t four = hwy::RoundUpTo(begin, kFourLines); four < begin + bytes;
         four += kFourLines) {
      // A page as 16 rows of four lines: its i-th four lines are line i / 4 of the rows 4 (i % 4)
      // to 4 (i % 4) + 3. Bits 8 and 9 of an address are i % 4, 10 and 11 are i / 4.
      const uintptr_t first = (four & 0x300) << 2 | (four & 0xc00) >> 4;
      const auto* to = reinterpret_cast<const char*>((four & ~(kPage - 1)) + 2 * kPage + first);
      HWY_UNROLL(4)
      for (size_t row = 0; row < 4; ++row) __builtin_prefetch(to + row * kFourLines, 0, 2);
    }
  }
}

// dots[g * dot_stride + r] = q_g . row_r for all rows and n_heads query heads. Rows are taken in
// groups, so that a second tile of heads finds them in the L1 cache; `ahead` says what is asked for
// with each group: LinkedRows or PiecesAhead.
template <class T, class Ahead>
HWY_INLINE void dot_heads(const float* HWY_RESTRICT q, size_t q_stride, size_t n_heads,
                          const T* const* rows, size_t n_rows, size_t head_dim,
                          float* HWY_RESTRICT dots, size_t dot_stride, Ahead& ahead) {
  const size_t group = rows_together(bytes_of_row<T>(head_dim));
  for (size_t r = 0; r < n_rows; r += group) {
    const size_t n = n_rows - r < group ? n_rows - r : group;
    auto&& next = ahead.of_group(r, n);
    size_t g = 0;
    for (; g + 4 <= n_heads; g += 4) {
      dot_head_tile<4>(q + g * q_stride, q_stride, rows + r, n, head_dim, dots + g * dot_stride + r,
                       dot_stride, next);
    }
    const float* q_rest = q + g * q_stride;
    float* out = dots + g * dot_stride + r;
    if (n_heads - g == 3)
      dot_head_tile<3>(q_rest, q_stride, rows + r, n, head_dim, out, dot_stride, next);
    if (n_heads - g == 2)
      dot_head_tile<2>(q_rest, q_stride, rows + r, n, head_dim, out, dot_stride, next);
    if (n_heads - g == 1)
      dot_head_tile<1>(q_rest, q_stride, rows + r, n, head_dim, out, dot_stride, next);
    next.ask_rest();
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_ROWS_INL_H_
