// Integer dot products of rows with panels of quantised weights. Outputs lie in the lanes, so a
// scale is a vector and no sum goes across lanes; the rows are the signed operand of the dot
// product, the weights the unsigned one.
//
// Scales bound many rows: Zen 4 and 5 multiply on two of their four pipes, and beside the 96
// products of a tile of 32 inputs these do 24 multiplications by scales, so 0.8 of the products'
// peak is the most. Unpacked panels hold the products of the scales, which leaves 12 and 0.89.
// Sums, differences and shifts go to the other pipes. A table of these products is twice as large
// as the weights: from the second cache, lines of both would take a Zen 5 as long as the products,
// so that few inputs of 32 outputs are unpacked and multiplied with all rows at a time.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
#include "kernels/quad_dot-inl.h"
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Sums of a tile: to[r * stride + j], plus what stands there when `accumulate`.
struct Out {
  float* to;
  size_t stride;
  bool accumulate;
};

// A product's rows of x, [begin, end), of all their inputs, and where it goes.
struct Product {
  const QuantizedRows& x;
  size_t begin, end, n_in, n_cols;
  bool accumulate;
  float* y;
  size_t y_stride;
};

// Rows of x of one group.
struct Rows {
  QuantizedBlock x;  // of the first one
  size_t group;
  bool panel_is_new;  // nothing was multiplied with the panel so far: it is in no cache
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// Whether there is an instruction for sums of four products of unsigned and signed bytes; without
// it a pair of products must fit 16 bits, which 128 * 127 * 2 does and 255 * 127 * 2 does not.
inline constexpr bool kPairDot = !KVASIR_QUAD_DOT;

// Four weights of each output of a vector. Wide ones (more than 7 bits) are magnitudes and signs
// where products are pairs: then the offset of 128 is gone from them.
struct Weights {
  VecB value, sign;
};

constexpr bool is_wide(int32_t offset) { return offset == 128; }

// What remains to subtract from each weight of prepare().
constexpr int32_t offset_left(int32_t offset) { return is_wide(offset) && kPairDot ? 0 : offset; }

template <bool kWide>
HWY_INLINE Weights prepare(VecB q) {
  if constexpr (kWide && kPairDot) {
    const hn::RebindToSigned<Bytes> di8;
    const auto w = hn::BitCast(di8, hn::Xor(q, hn::Set(Bytes(), 0x80)));
    return {hn::BitCast(Bytes(), hn::Abs(w)), hn::BitCast(Bytes(), w)};
  } else {
    return {q, q};
  }
}

// 16 bits per lane: a's two products with unsigned weights that are below 2^7, or with 2^7.
HWY_INLINE VecI pair_dot(VecB w, VecI a) {
#if HWY_TARGET <= HWY_AVX3
  return VecI{_mm512_maddubs_epi16(w.raw, a.raw)};
#else
  return VecI{_mm256_maddubs_epi16(w.raw, a.raw)};
#endif
}

// Each lane's two 16 bits, added.
HWY_INLINE VecI widen_pairs(VecI pairs) {
#if HWY_TARGET <= HWY_AVX3
  return VecI{_mm512_madd_epi16(pairs.raw, _mm512_set1_epi16(1))};
#else
  return VecI{_mm256_madd_epi16(pairs.raw, _mm256_set1_epi16(1))};
#endif
}

// Lanes of 16 and of 32 bits. As intrinsics gcc 12 would make the products of all steps before it
// adds two of them, and run out of registers.
HWY_INLINE VecI add_pairs(VecI sum, VecI pairs) {
  asm("vpaddw %1, %0, %0" : "+v"(sum.raw) : "v"(pairs.raw));
  return sum;
}
HWY_INLINE VecI add_fours(VecI sum, VecI fours) {
  asm("vpaddd %1, %0, %0" : "+v"(sum.raw) : "v"(fours.raw));
  return sum;
}

// sum[j] += the four products of output j with a, whose four bytes repeat in all lanes.
template <bool kWide>
HWY_INLINE VecI add_dot(VecI sum, const Weights& w, VecI a) {
#if KVASIR_QUAD_DOT
  return VecI{_mm512_dpbusd_epi32(sum.raw, w.value.raw, a.raw)};
#else
  if constexpr (kWide) {
#if HWY_TARGET <= HWY_AVX3
    const __mmask64 negative = _mm512_movepi8_mask(w.sign.raw);
    a.raw = _mm512_mask_sub_epi8(a.raw, negative, _mm512_setzero_si512(), a.raw);
#else
    a.raw = _mm256_sign_epi8(a.raw, w.sign.raw);
#endif
  }
  return add_fours(sum, widen_pairs(pair_dot(w.value, a)));
#endif
}

template <size_t kRows, size_t kVectors>
using SumsI = VecI[kRows][kVectors];

// How many steps' pairs of products, added up, fit 16 bits, of weights of that many bits. Only the
// last of them widens pairs, which is the second multiplication of a step. 1: each does.
constexpr size_t steps_of_pairs(uint32_t bits) {
  constexpr uint32_t kMostPair = 2 * 127, kMost = 32767;
  if (!kPairDot || bits >= 7) return 1;
  return std::bit_floor(kMost / (kMostPair * ((1u << bits) - 1)));
}

// The integers of a tile: sums of fours of products, and of pairs in 16 bits that these lack.
template <size_t kRows, size_t kVectors>
struct Integers {
  SumsI<kRows, kVectors> fours, pairs;
};
template <size_t kRows, size_t kVectors>
using SumsF = VecF[kRows][kVectors];

template <size_t kRows, size_t kVectors>
HWY_INLINE void store(const SumsF<kRows, kVectors>& total, size_t first, const Out& out) {
  const Tag d;
  for (size_t r = 0; r < kRows; ++r)
    for (size_t v = 0; v < kVectors; ++v) {
      float* to = out.to + r * out.stride + first + v * kOutputs;
      hn::StoreU(out.accumulate ? hn::Add(hn::LoadU(d, to), total[r][v]) : total[r][v], d, to);
    }
}

// What the products are of: the bits of a weight, and its offset.
struct WeightRange {
  uint32_t bits;
  int32_t offset;
};
constexpr WeightRange range_of(const QuantizedLayout& layout) {
  return {layout.levels ? 8 : layout.bits, layout.offset};
}

// Sums begin at begin(row). Where sums of pairs come first, these are the first of `fours`, and
// whole_sum() adds what they begin at.
template <WeightRange kRange, size_t kRows, size_t kVectors, class Begin>
HWY_INLINE void begin_sums(const Begin& begin, Integers<kRows, kVectors>& sum) {
  if constexpr (steps_of_pairs(kRange.bits) == 1) {
    for (size_t r = 0; r < kRows; ++r) {
      const VecI of_row = begin(r);
      for (size_t v = 0; v < kVectors; ++v) sum.fours[r][v] = of_row;
    }
  }
}
template <WeightRange kRange, class Begin>
HWY_INLINE VecI whole_sum(VecI fours, const Begin& begin, size_t r) {
  if constexpr (steps_of_pairs(kRange.bits) == 1) return fours;
  return hn::Add(fours, begin(r));
}

// sum += inputs 4 kStep to 4 kStep + 3 of a block, of every row and output of the tile: the
// kTurn-th of those of a scale.
template <WeightRange kRange, size_t kTurn, size_t kStep, size_t kRows, size_t kVectors>
HWY_INLINE void add_dots(const QuantizedBlock& x, const VecB* q, Integers<kRows, kVectors>& sum) {
  constexpr bool kWide = is_wide(kRange.offset);
  constexpr size_t kSteps = steps_of_pairs(kRange.bits);
  Weights w[kVectors];
  for (size_t v = 0; v < kVectors; ++v) w[v] = prepare<kWide>(q[v]);
  for (size_t r = 0; r < kRows; ++r) {
    int32_t four;
    std::memcpy(&four, x.q + r * kQuantizedInputs + 4 * kStep, sizeof four);
    const VecI a = hn::Set(TagI(), four);
    for (size_t v = 0; v < kVectors; ++v) {
      VecI& fours = sum.fours[r][v];
      if constexpr (kSteps == 1) {
        fours = add_dot<kWide>(fours, w[v], a);
      } else {
        VecI& pairs = sum.pairs[r][v];
        pairs = kTurn % kSteps == 0 ? pair_dot(w[v].value, a)
                                    : add_pairs(pairs, pair_dot(w[v].value, a));
        if constexpr (kTurn % kSteps == kSteps - 1)
          fours = kTurn < kSteps ? widen_pairs(pairs) : hn::Add(fours, widen_pairs(pairs));
      }
    }
  }
}

// Where sums of products with weights of that offset begin, per row: minus the offset times the
// sum of the row's q.
template <int32_t kOffset, size_t kHalf, bool kWhole>
HWY_INLINE VecI minus_offset(const QuantizedBlock& x, size_t r) {
  constexpr int32_t kFactor = kWhole ? kSumFactor : kHalfSumFactor;
  constexpr auto kTimes = static_cast<uint32_t>(offset_left(kOffset) / kFactor);
  if constexpr (kTimes == 0) {
    return hn::Zero(TagI());
  } else {
    static_assert(std::has_single_bit(kTimes));
    const int32_t* from = kWhole ? x.minus_sum + r : x.minus_half_sum + 2 * r + kHalf;
    // In vectors: an integer in a register of its own would have to cross over to them.
    return hn::ShiftLeft<std::countr_zero(kTimes)>(hn::Set(TagI(), *from));
  }
}

// Which four inputs of a block step `turn` of its eight takes. A nibble's neighbour follows it, so
// that both come from one load, unless it has another scale. Bytes follow each other.
constexpr size_t inputs_of_step(const QuantizedLayout& layout, size_t turn) {
  const bool in_pairs = layout.bits != 8 && layout.scales_per_block() == 1;
  return in_pairs ? turn % 2 * 4 + turn / 2 : turn;
}

// Weights of a block that are multiplied at once.
struct BlockPart {
  const uint8_t *upper, *q;  // of all outputs
  size_t first;              // output
  const uint8_t* asked;      // memory that lies as far ahead of this is asked for meanwhile
};

// sum += four inputs of every row and output of the part. An eighth of kAsked bytes is asked for in
// each step: all at once they would keep the core from what it has.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kAsked, size_t kTurn, size_t kRows,
          size_t kVectors>
HWY_INLINE void step(const QuantizedBlock& x, const BlockPart& part,
                     Integers<kRows, kVectors>& sum) {
  static_assert(kAsked % 8 == 0);
  constexpr size_t kEighth = kAsked / 8;
  constexpr size_t kStep = inputs_of_step(kLayout, kTurn);
  prefetch_ahead<kAhead>(part.asked + kTurn * kEighth, kEighth);
  VecB w[kVectors];
  for (size_t v = 0; v < kVectors; ++v)
    w[v] = load_weights<kLayout, kStep>(part.upper, part.q, part.first + v * kOutputs);
  constexpr size_t kTurnOfScale = kTurn % (8 / kLayout.scales_per_block());
  add_dots<range_of(kLayout), kTurnOfScale, kStep, kRows, kVectors>(x, w, sum);
}

// total += the inputs of one scale: the half-th 16 of a block of two scales, or a whole block.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kAsked, size_t kHalf, size_t kRows,
          size_t kVectors>
HWY_INLINE void segment(const QuantizedBlock& x, const BlockPart& part, const VecF* scale,
                        SumsF<kRows, kVectors>& total) {
  constexpr bool kWhole = kLayout.scales_per_block() == 1;
  constexpr WeightRange kRange = range_of(kLayout);
  const auto begin = [&](size_t r)
                         HWY_ATTR { return minus_offset<kRange.offset, kHalf, kWhole>(x, r); };
  Integers<kRows, kVectors> sum;
  begin_sums<kRange>(begin, sum);
  const auto steps = [&]<size_t... kTurn>(std::index_sequence<kTurn...>) HWY_ATTR {
    (step<kLayout, kAhead, kAsked, kHalf * 4 + kTurn, kRows, kVectors>(x, part, sum), ...);
  };
  steps(std::make_index_sequence < kWhole ? 8 : 4 > ());
  const Tag d;
  for (size_t r = 0; r < kRows; ++r) {
    const VecF by = hn::Set(d, x.scale[r]);
    for (size_t v = 0; v < kVectors; ++v) {
      const VecI all = whole_sum<kRange>(sum.fours[r][v], begin, r);
      total[r][v] = hn::MulAdd(hn::ConvertTo(d, all), hn::Mul(scale[v], by), total[r][v]);
    }
  }
}

// The mins of the v-th vector of outputs.
template <size_t kRows, size_t kVectors>
HWY_INLINE void subtract_min(const QuantizedBlock& x, VecF min, size_t v,
                             SumsF<kRows, kVectors>& total) {
  for (size_t r = 0; r < kRows; ++r)
    total[r][v] = hn::NegMulAdd(min, hn::Set(Tag(), x.scaled_sum[r]), total[r][v]);
}

// Rows times kParts * kVectors * kOutputs outputs of the panel from `first` on: kVectors of each
// block at a time.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kRows, size_t kVectors, size_t kParts>
HWY_NOINLINE void tile(const Rows& rows, size_t n_in, const uint8_t* HWY_RESTRICT panel,
                       size_t first, const Out& out) {
  constexpr size_t kScales = kLayout.scales_per_block();
  constexpr size_t kAsked = kLayout.block_bytes() / kParts;
  const Tag d;
  QuantizedBlock x = rows.x;
  SumsF<kRows, kVectors> total[kParts];
  for (auto& of_part : total)
    for (auto& of_row : of_part)
      for (VecF& sum : of_row) sum = hn::Zero(d);
  const uint8_t* at = panel;
  for (size_t input = 0; input < n_in; input += kLayout.inputs_per_head()) {
    const uint8_t* head = at;
    prefetch_ahead<kAhead>(at, kLayout.head_bytes());
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, x.advance(rows.group)) {
      BlockPart part{at + kLayout.scale_bytes(), at + kLayout.scale_bytes() + kLayout.upper_bytes(),
                     first, at};
      for (size_t i = 0; i < kParts; ++i) {
        VecF scale[kVectors];
        const auto read_scales = [&](size_t half) HWY_ATTR {
          for (size_t v = 0; v < kVectors; ++v)
            scale[v] = load_scale<kLayout>(head, at, half, part.first + v * kOutputs);
        };
        read_scales(0);
        segment<kLayout, kAhead, kAsked, 0, kRows, kVectors>(x, part, scale, total[i]);
        if constexpr (kScales == 2) {
          read_scales(1);
          segment<kLayout, kAhead, kAsked, 1, kRows, kVectors>(x, part, scale, total[i]);
        }
        if constexpr (kLayout.has_min) {
          for (size_t v = 0; v < kVectors; ++v)
            subtract_min<kRows, kVectors>(x, load_min<kLayout>(head, at, part.first + v * kOutputs),
                                          v, total[i]);
        }
        part.first += kVectors * kOutputs;
        part.asked += kAsked;
      }
      at += kLayout.block_bytes();
    }
  }
  for (size_t i = 0; i < kParts; ++i)
    store<kRows, kVectors>(total[i], first + i * kVectors * kOutputs, out);
}

// Most rows of a tile.
inline constexpr size_t kTileRows = 6;
// Vectors of outputs beside each other: what the registers hold twice, as integers and as sums;
// with AVX2 once, as there sums leave the registers once per block. With AVX-512 up to 5 rows take
// the panel's 4 vectors at once, though sums of 4 and 5 rows leave the registers, too: a second
// pass would wait for the second cache. From memory, on Zen 4, 2 rows take 0.6 to 0.85 of the time
// of two passes, 5 rows 0.75 to 0.95; 6 rows of some types would take more.
template <size_t kRows>
inline constexpr size_t kTileVectors = HWY_TARGET <= HWY_AVX3 ? (kRows <= 5 ? 4 : 2)
                                                              : (kRows == 1   ? 8
                                                                 : kRows == 2 ? 4
                                                                              : 2);
// With AVX2 all rows take all outputs of a block, kTileVectors after the others: in one pass of the
// panel. From memory, on Zen 3, one row takes 0.6 of the time of two passes.
inline constexpr bool kInOnePass = HWY_TARGET > HWY_AVX3;

// fn<n_rows>(), of 1 to kTileRows rows.
template <class Fn>
HWY_INLINE void with_rows(size_t n_rows, const Fn& fn) {
  static_assert(kTileRows == 6);
  switch (n_rows) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    case 4:
      return fn.template operator()<4>();
    case 5:
      return fn.template operator()<5>();
    default:
      return fn.template operator()<kTileRows>();
  }
}

// A panel as it lies.
template <QuantizedLayout kLayout>
struct Packed {
  template <size_t kRows>
  static void multiply(const Rows& rows, size_t n_in, const uint8_t* panel, const Out& out) {
    constexpr size_t kVectors = std::min(kTileVectors<kRows>, kPanelOutputs / kOutputs);
    constexpr size_t kParts = kInOnePass ? kPanelOutputs / kOutputs / kVectors : 1;
    constexpr size_t kTogether = kParts * kVectors * kOutputs;
    for (size_t first = 0; first < kPanelOutputs; first += kTogether)
      with_ahead(rows.panel_is_new && first == 0, [&]<Ahead kAhead>() HWY_ATTR {
        tile<kLayout, kAhead, kRows, kVectors, kParts>(rows, n_in, panel, first, out);
      });
  }
};

// Without sums of four products a table costs more than it saves (AVX2).
inline constexpr size_t kLevels = kPairDot ? 1 : kScaleLevels;
constexpr WeightRange unpacked_range(const QuantizedLayout& layout) {
  return kLevels > 1 ? WeightRange{8, kUnpackedOffset} : range_of(layout);
}

// Rows that pass a slice before they pass the next: their inputs stay in the second cache. All,
// where a slice holds a table: it is large, and comes into the first cache once.
inline constexpr size_t kSliceRows = kLevels > 1 ? SIZE_MAX : 48;

// Vectors of outputs of a slice.
inline constexpr size_t kSliceVectors = 2;
constexpr UnpackedLayout unpacked_slice(const QuantizedLayout& layout) {
  return unpacked(layout, kLevels, kSliceVectors * kOutputs);
}

// Sums of a tile of a slice.
struct SliceSums {
  const float* before;  // [rows, kPanelOutputs]  those of the inputs before; null: zero
  Out out;
  // To the rows behind.
  void advance(size_t n_rows) {
    if (before) before += n_rows * kPanelOutputs;
    out.to += n_rows * out.stride;
  }
};

inline constexpr size_t kLineBytes = 64;

// Memory that is read next: some lines of it are asked for per tile.
struct PanelAhead {
  const uint8_t *at = nullptr, *end = nullptr;
  size_t n_per_tile = 0;
  void ask() {
    for (size_t i = 0; i < n_per_tile && at < end; ++i, at += kLineBytes)
      __builtin_prefetch(at, 0, 2);
  }
};

// The rows of the next tile, block by block. Many rows come from the third cache: on a Zen 4 whose
// neighbours use it, too, prompts take 0.91 to 0.95 of the time by asking, and as long in quiet
// minutes.
class RowsAhead {
 public:
  RowsAhead(const QuantizedBlock& next, size_t row)
      : q_(next.q), begins_group_(row % kQuantizedGroup == 0) {}
  HWY_INLINE void ask() {
    constexpr size_t kRowBytes = kTileRows * kQuantizedInputs;
    for (size_t i = 0; i < kRowBytes; i += kLineBytes) __builtin_prefetch(q_ + i, 0, 3);
    // Behind q those numbers of all rows of the group that a tile reads.
    constexpr size_t kNumbers = kQuantizedGroup * kQuantizedInputs;
    if (begins_group_)
      for (size_t i = 0; i < 2; ++i) __builtin_prefetch(q_ + kNumbers + i * kLineBytes, 0, 3);
    q_ += kQuantizedGroup * QuantizedBlock::kBytes;
  }

 private:
  const int8_t* q_;
  bool begins_group_;
};

// To write a line, the core has to have it. Of 512 rows times 2,048 outputs or more, whose sums are
// in no near cache, products take 0.97 of the time where the tile before asks (Zen 4).
HWY_INLINE void ask_for_sums(const float* to) {
  for (size_t v = 0; v < kSliceVectors; ++v) __builtin_prefetch(to + v * kOutputs, 1, 3);
}

// total += the inputs of one scale, as segment() does, of a slice. With a table of scales
// sums begin at the bits of the row's origin, which holds the power of two of its scale.
template <UnpackedLayout kLayout, WeightRange kRange, size_t kHalf, size_t kRows>
HWY_INLINE void slice_segment(const QuantizedBlock& x, const uint8_t* at,
                              SumsF<kRows, kSliceVectors>& total) {
  constexpr size_t kVectors = kSliceVectors;
  constexpr bool kWhole = kLayout.scales_per_block == 1, kTable = kLayout.levels > 1;
  constexpr size_t kSteps = kQuantizedInputs / 4 / kLayout.scales_per_block;
  const Tag d;
  const auto* scales = reinterpret_cast<const float*>(at);
  const uint8_t* q = at + kLayout.q_at();
  const auto begin = [&](size_t r) HWY_ATTR {
    if constexpr (kTable)
      return hn::Set(TagI(), kWhole ? x.begin[r] : x.half_begin[2 * r + kHalf]);
    else
      return minus_offset<kRange.offset, kHalf, kWhole>(x, r);
  };
  Integers<kRows, kVectors> sum;
  begin_sums<kRange>(begin, sum);
  const auto steps = [&]<size_t... kStep>(std::index_sequence<kStep...>) HWY_ATTR {
    const auto step = [&]<size_t kOne>() HWY_ATTR {
      VecB w[kVectors];
      for (size_t v = 0; v < kVectors; ++v)
        w[v] = hn::LoadU(Bytes(), q + (kOne * kLayout.outputs + v * kOutputs) * 4);
      add_dots<kRange, kOne % kSteps, kOne, kRows, kVectors>(x, w, sum);
    };
    (step.template operator()<kHalf * kSteps + kStep>(), ...);
  };
  steps(std::make_index_sequence<kSteps>());
  for (size_t r = 0; r < kRows; ++r) {
    const size_t level = kTable ? static_cast<size_t>(x.level[r]) : 0;
    const float* scale = scales + (level * kLayout.scales_per_block + kHalf) * kLayout.outputs;
    const VecF of_row = hn::Set(d, kTable ? x.origin[r] : x.scale[r]);
    for (size_t v = 0; v < kVectors; ++v) {
      const VecF of_output = hn::LoadU(d, scale + v * kOutputs);
      const VecI all = whole_sum<kRange>(sum.fours[r][v], begin, r);
      if constexpr (kTable)
        total[r][v] = hn::MulAdd(hn::Sub(hn::BitCast(d, all), of_row), of_output, total[r][v]);
      else
        total[r][v] = hn::MulAdd(hn::ConvertTo(d, all), hn::Mul(of_output, of_row), total[r][v]);
    }
  }
}

// Rows times a slice. Unless null, asks for `next`, and with each block for a row of its sums;
// behind the last rows in vain.
template <UnpackedLayout kLayout, WeightRange kRange, size_t kRows>
HWY_INLINE void slice_tile(QuantizedBlock x, size_t n_blocks, const uint8_t* HWY_RESTRICT at,
                           const SliceSums& sums, RowsAhead* next) {
  const Tag d;
  SumsF<kRows, kSliceVectors> total;
  const auto for_sums = [&](const auto& fn) HWY_ATTR {
    for (size_t r = 0; r < kRows; ++r)
      for (size_t v = 0; v < kSliceVectors; ++v) fn(r, v, total[r][v]);
  };
  if constexpr (kLevels == 1) {  // no tile asks for the next one
    for (size_t r = 0; r < kRows; ++r) ask_for_sums(sums.out.to + r * sums.out.stride);
  }
  if (sums.before) {
    for_sums([&](size_t r, size_t v, VecF& sum)
                 HWY_ATTR { sum = hn::LoadU(d, sums.before + r * kPanelOutputs + v * kOutputs); });
  } else {
    for_sums([&](size_t, size_t, VecF& sum) HWY_ATTR { sum = hn::Zero(d); });
  }
  for (size_t i = 0; i < n_blocks; ++i, x.advance(kQuantizedGroup), at += kLayout.block_bytes()) {
    if (next) {
      if (i < kRows) ask_for_sums(sums.out.to + (i + kRows) * sums.out.stride);
      next->ask();
    }
    slice_segment<kLayout, kRange, 0, kRows>(x, at, total);
    if constexpr (kLayout.scales_per_block == 2)
      slice_segment<kLayout, kRange, 1, kRows>(x, at, total);
    if constexpr (kLayout.has_min) {
      const auto* mins = reinterpret_cast<const float*>(at + kLayout.mins_at());
      for (size_t v = 0; v < kSliceVectors; ++v)
        subtract_min<kRows, kSliceVectors>(x, hn::LoadU(d, mins + v * kOutputs), v, total);
    }
  }
  store<kRows, kSliceVectors>(total, 0, sums.out);
}

template <UnpackedLayout kLayout, WeightRange kRange, size_t kRows>
HWY_NOINLINE void slice_rows(const QuantizedBlock& x, size_t n_blocks, const uint8_t* at,
                             const SliceSums& sums) {
  slice_tile<kLayout, kRange, kRows>(x, n_blocks, at, sums, nullptr);
}

// Rows [begin, end) of x, of whole groups: inputs [from, from + n) times a slice.
template <UnpackedLayout kLayout, WeightRange kRange>
HWY_NOINLINE void multiply_slice(const Product& p, size_t from, size_t n, const uint8_t* at,
                                 SliceSums sums, PanelAhead& ahead) {
  constexpr size_t kGroup = kQuantizedGroup;  // known: one pointer leads to all numbers of a block
  const QuantizedRows x{p.x.data, kGroup};
  const size_t n_blocks = n / kQuantizedInputs;
  for (size_t row = p.begin, n_rows; row < p.end; row += n_rows) {
    n_rows = std::min({kTileRows, p.end - row, kGroup - row % kGroup});
    const QuantizedBlock block = x.block(row, from / kQuantizedInputs, p.n_in);
    ahead.ask();
    with_rows(
        n_rows, [&]<size_t kRows>() HWY_ATTR __attribute__((always_inline)) {
          // With AVX-512 a tile has so few inputs that it would wait for the arguments of a call to
          // come back from memory: a sixth of the time on Zen 5. With AVX2 gcc 12 would run out of
          // registers here.
          if constexpr (kRows == kTileRows && kLevels > 1) {
            const size_t row_behind = row + kRows < p.end ? row + kRows : p.begin;
            RowsAhead next(x.block(row_behind, from / kQuantizedInputs, p.n_in), row_behind);
            slice_tile<kLayout, kRange, kRows>(block, n_blocks, at, sums, &next);
          } else {
            slice_rows<kLayout, kRange, kRows>(block, n_blocks, at, sums);
          }
        });
    sums.advance(n_rows);
  }
}

template <class Panel>
void some_rows(const Rows& rows, size_t n_rows, size_t n_in, const uint8_t* panel, const Out& out) {
  with_rows(n_rows,
            [&]<size_t kRows>() { Panel::template multiply<kRows>(rows, n_in, panel, out); });
}

// n_in inputs of a panel into its slices.
template <QuantizedType kType, Ahead kAhead>
void unpack(const uint8_t* HWY_RESTRICT at, size_t n_in, uint8_t* HWY_RESTRICT to) {
  constexpr QuantizedLayout kFrom = quantized_layout(kType);
  constexpr UnpackedLayout kTo = unpacked_slice(kFrom);
  const size_t slice_bytes = n_in / kQuantizedInputs * kTo.block_bytes();
  const Tag d;
  const auto raise =
      hn::Set(Bytes(), static_cast<uint8_t>(unpacked_range(kFrom).offset - kFrom.offset));
  for (size_t input = 0; input < n_in; input += kFrom.inputs_per_head()) {
    const uint8_t* head = at;
    prefetch_ahead<kAhead>(at, kFrom.head_bytes());
    at += kFrom.head_bytes();
    for (size_t b = 0; b < kFrom.blocks_per_head; ++b) {
      prefetch_ahead<kAhead>(at, kFrom.block_bytes());
      const uint8_t* upper = at + kFrom.scale_bytes();
      const uint8_t* q = upper + kFrom.upper_bytes();
      for (size_t first = 0; first < kPanelOutputs; first += kOutputs) {
        uint8_t* block = to + first / kTo.outputs * slice_bytes;
        auto* scales = reinterpret_cast<float*>(block);
        auto* mins = reinterpret_cast<float*>(block + kTo.mins_at());
        uint8_t* bytes = block + kTo.q_at();
        const size_t of_slice = first % kTo.outputs;
        for (size_t part = 0; part < kTo.scales_per_block; ++part) {
          const VecF scale = load_scale<kFrom>(head, at, part, first);
          for (size_t level = 0; level < kTo.levels; ++level) {
            const float times = kTo.levels == 1 ? 1.0f
                                                : static_cast<float>(kScaleLevels + level) /
                                                      kScaleLevels * (1u << kOriginShift);
            hn::StoreU(hn::Mul(scale, hn::Set(d, times)), d,
                       scales + (level * kTo.scales_per_block + part) * kTo.outputs + of_slice);
          }
        }
        if constexpr (kTo.has_min) hn::StoreU(load_min<kFrom>(head, at, first), d, mins + of_slice);
        const auto store = [&]<size_t... kStep>(std::index_sequence<kStep...>) HWY_ATTR {
          (hn::StoreU(hn::Add(load_weights<kFrom, kStep>(upper, q, first), raise), Bytes(),
                      bytes + (kStep * kTo.outputs + of_slice) * 4),
           ...);
        };
        store(std::make_index_sequence<kQuantizedInputs / 4>());
      }
      at += kFrom.block_bytes();
      to += kTo.block_bytes();
    }
  }
}

#else  // machines that are older than AVX2: right, not fast

inline constexpr size_t kTileRows = 4;

template <QuantizedLayout kLayout>
float output_of(QuantizedBlock x, size_t group, size_t r, size_t n_in, const uint8_t* at,
                size_t output) {
  float total = 0.0f;
  for (size_t input = 0; input < n_in; input += kLayout.inputs_per_head()) {
    const uint8_t* head = at;
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, x.advance(group)) {
      const uint8_t* upper = at + kLayout.scale_bytes();
      for (size_t part = 0; part < kLayout.scales_per_block(); ++part) {
        int32_t sum = 0;
        for (size_t i = 0; i < kLayout.inputs_per_scale; ++i) {
          const size_t k = part * kLayout.inputs_per_scale + i;
          const int32_t w = weight_at<kLayout>(upper, upper + kLayout.upper_bytes(), k, output);
          sum += (w - kLayout.offset) * x.q[r * kQuantizedInputs + k];
        }
        float scale = widened(head + 2 * output);
        const uint8_t integer = at[part * kPanelOutputs + output];
        if constexpr (kLayout.integer_scales())
          scale *=
              static_cast<float>(kLayout.scale_is_signed ? static_cast<int8_t>(integer) : integer);
        total += static_cast<float>(sum) * scale * x.scale[r];
      }
      if constexpr (kLayout.has_min) {
        float min = widened(head + 2 * (kPanelOutputs + output));
        if constexpr (kLayout.integer_scales())
          min *= static_cast<float>(at[kPanelOutputs + output]);
        total -= min * x.scaled_sum[r];
      }
      at += kLayout.block_bytes();
    }
  }
  return total;
}

template <QuantizedLayout kLayout>
struct Packed {
  static constexpr QuantizedLayout kOf = kLayout;
};

template <class Panel>
void some_rows(const Rows& rows, size_t n_rows, size_t n_in, const uint8_t* panel, const Out& out) {
  for (size_t r = 0; r < n_rows; ++r)
    for (size_t output = 0; output < kPanelOutputs; ++output) {
      float& to = out.to[r * out.stride + output];
      const float sum = output_of<Panel::kOf>(rows.x, rows.group, r, n_in, panel, output);
      to = out.accumulate ? to + sum : sum;
    }
}

#endif

// from[rows, kPanelOutputs]: their first n_cols columns to y.
[[maybe_unused]] void copy_columns(const float* from, size_t n_rows, const Product& p, float* y) {
  for (size_t r = 0; r < n_rows; ++r, from += kPanelOutputs, y += p.y_stride)
    for (size_t j = 0; j < p.n_cols; ++j) y[j] = p.accumulate ? y[j] + from[j] : from[j];
}

template <class Panel>
void multiply_packed(const Product& p, const uint8_t* panel) {
  HWY_ALIGN float some[kTileRows * kPanelOutputs];
  const size_t group = p.x.group;
  for (size_t row = p.begin, n_rows; row < p.end; row += n_rows) {
    n_rows = std::min({kTileRows, p.end - row, group - row % group});
    const Rows rows = {p.x.block(row, 0, p.n_in), group, row == p.begin};
    float* y = p.y + (row - p.begin) * p.y_stride;
    if (p.n_cols == kPanelOutputs) {
      some_rows<Panel>(rows, n_rows, p.n_in, panel, {y, p.y_stride, p.accumulate});
      continue;
    }
    some_rows<Panel>(rows, n_rows, p.n_in, panel, {some, kPanelOutputs, false});
    copy_columns(some, n_rows, p, y);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
// Some inputs after others: unpacked, those of a slice stay in the first cache while many rows
// pass.
template <QuantizedType kType>
void multiply_unpacked(const Product& p, const uint8_t* panel, void* scratch) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  constexpr UnpackedLayout kSlice = unpacked_slice(kLayout);
  constexpr size_t kInputs = unpacked_inputs(kLevels);
  const size_t n_rows = p.end - p.begin;
  auto* own = static_cast<float*>(scratch);  // sums [rows, kPanelOutputs]
  auto* unpacked = reinterpret_cast<uint8_t*>(own + n_rows * kPanelOutputs);
  for (size_t from = 0; from < p.n_in; from += kInputs) {
    const size_t n = std::min(kInputs, p.n_in - from), bytes = quantized_panel_bytes(kType, n);
    with_ahead(true, [&]<Ahead kAhead>() HWY_ATTR { unpack<kType, kAhead>(panel, n, unpacked); });
    panel += bytes;
    // Behind a panel lies the next one.
    PanelAhead ahead{panel, panel + bytes, bytes / kLineBytes / (n_rows / kTileRows) + 1};
    const bool to_y = from + n == p.n_in && p.n_cols == kPanelOutputs;
    for (size_t row = 0, n_now; row < n_rows; row += n_now) {
      n_now = std::min(kSliceRows, n_rows - row);
      for (size_t first = 0; first < kPanelOutputs; first += kSlice.outputs) {
        const uint8_t* slice =
            unpacked + first / kSlice.outputs * (n / kQuantizedInputs) * kSlice.block_bytes();
        float* of_rows = own + row * kPanelOutputs + first;
        SliceSums sums{from > 0 ? of_rows : nullptr, {of_rows, kPanelOutputs, false}};
        if (to_y) sums.out = {p.y + row * p.y_stride + first, p.y_stride, p.accumulate};
        Product some = p;
        some.begin += row;
        some.end = some.begin + n_now;
        multiply_slice<kSlice, unpacked_range(kLayout)>(some, from, n, slice, sums, ahead);
      }
    }
  }
  if (p.n_cols < kPanelOutputs) copy_columns(own, n_rows, p, p.y);
}
#endif

template <QuantizedType kType>
void product(const Product& p, const uint8_t* panel, [[maybe_unused]] void* scratch) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if (scratch && p.end - p.begin >= kRowsToUnpack)
    return multiply_unpacked<kType>(p, panel, scratch);
#endif
  multiply_packed<Packed<quantized_layout(kType)>>(p, panel);
}

void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch) {
  const auto* bytes = static_cast<const uint8_t*>(panel);
  const Product p{x, begin, end, n_in, n_cols, accumulate, y, y_stride};
  switch (type) {
#define KVASIR_PRODUCT_OF(name) \
  case QuantizedType::name:     \
    return product<QuantizedType::name>(p, bytes, scratch);
    KVASIR_PRODUCT_OF(kQ4_0)
    KVASIR_PRODUCT_OF(kQ4_1)
    KVASIR_PRODUCT_OF(kQ5_0)
    KVASIR_PRODUCT_OF(kQ5_1)
    KVASIR_PRODUCT_OF(kQ8_0)
    KVASIR_PRODUCT_OF(kIQ4_NL)
    KVASIR_PRODUCT_OF(kQ4_K)
    KVASIR_PRODUCT_OF(kQ5_K)
    KVASIR_PRODUCT_OF(kQ6_K)
#undef KVASIR_PRODUCT_OF
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(quantized_product);

void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch) {
  HWY_DYNAMIC_DISPATCH(quantized_product)
  (type, x, begin, end, panel, n_in, n_cols, accumulate, y, y_stride, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
