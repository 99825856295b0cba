// Integer dot products of rows with panels of quantised weights. Outputs lie in the lanes, so a
// scale is a vector and no sum goes across lanes; the rows are the signed operand of the dot
// product, the weights the unsigned one.
//
// Scales bound many rows: Zen 5 multiplies on two of its four pipes, and beside the 96 products of
// a tile of 32 inputs these do 24 multiplications by scales, so 0.8 of the products' peak is the
// most. Conversions, sums and shifts go to the other pipes.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
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

// Rows of x of one group: where the first one's first block stands.
struct Rows {
  const int8_t* q;
  const float *scale, *scaled_sum;
  const int32_t *minus_sum, *minus_half_sum;
  size_t group;       // blocks from one block of a row to its next one
  bool panel_is_new;  // nothing was multiplied with the panel so far: it is in no cache

  void next_block() {
    q += group * kQuantizedInputs;
    scale += group;
    scaled_sum += group;
    minus_sum += group;
    minus_half_sum += 2 * group;
  }
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

constexpr bool is_wide(const QuantizedLayout& layout) { return layout.offset == 128; }

// What remains to subtract from each weight of prepare().
constexpr int32_t offset_left(const QuantizedLayout& layout) {
  return is_wide(layout) && kPairDot ? 0 : layout.offset;
}

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

// sum[j] += the four products of output j with a, whose four bytes repeat in all lanes.
template <bool kWide>
HWY_INLINE VecI add_dot(VecI sum, const Weights& w, VecI a) {
#if KVASIR_QUAD_DOT
  return VecI{_mm512_dpbusd_epi32(sum.raw, w.value.raw, a.raw)};
#elif HWY_TARGET <= HWY_AVX3
  __m512i x = a.raw;
  if constexpr (kWide)
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w.sign.raw), _mm512_setzero_si512(), x);
  const __m512i pairs = _mm512_maddubs_epi16(w.value.raw, x);
  return VecI{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#else
  __m256i x = a.raw;
  if constexpr (kWide) x = _mm256_sign_epi8(x, w.sign.raw);
  const __m256i pairs = _mm256_maddubs_epi16(w.value.raw, x);
  return VecI{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#endif
}

template <size_t kRows, size_t kVectors>
using SumsI = VecI[kRows][kVectors];
template <size_t kRows, size_t kVectors>
using SumsF = VecF[kRows][kVectors];

// Which four inputs of a block step `turn` of its eight takes. A nibble's neighbour follows it, so
// that both come from one load, unless it has another scale. Bytes follow each other.
constexpr size_t inputs_of_step(const QuantizedLayout& layout, size_t turn) {
  const bool in_pairs = layout.bits != 8 && layout.scales_per_block() == 1;
  return in_pairs ? turn % 2 * 4 + turn / 2 : turn;
}

// sum += four inputs of every row and output of the tile. An eighth of what is read later is asked
// for in each step: all at once it would keep the core from what it has.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kTurn, size_t kRows, size_t kVectors>
HWY_INLINE void step(const Rows& x, const uint8_t* upper, const uint8_t* q, size_t first,
                     SumsI<kRows, kVectors>& sum) {
  constexpr bool kWide = is_wide(kLayout);
  static_assert(kLayout.block_bytes() % 8 == 0);
  constexpr size_t kEighth = kLayout.block_bytes() / 8;
  constexpr size_t kStep = inputs_of_step(kLayout, kTurn);
  prefetch_ahead<kAhead>(upper - kLayout.scale_bytes() + kTurn * kEighth, kEighth);
  Weights w[kVectors];
  for (size_t v = 0; v < kVectors; ++v)
    w[v] = prepare<kWide>(load_weights<kLayout, kStep>(upper, q, first + v * kOutputs));
  for (size_t r = 0; r < kRows; ++r) {
    int32_t four;
    std::memcpy(&four, x.q + r * kQuantizedInputs + 4 * kStep, sizeof four);
    const VecI a = hn::Set(TagI(), four);
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = add_dot<kWide>(sum[r][v], w[v], a);
  }
}

// total += the inputs of one scale: the half-th 16 of a block of two scales, or a whole block.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kHalf, size_t kRows, size_t kVectors>
HWY_INLINE void segment(const Rows& x, const uint8_t* upper, const uint8_t* q, size_t first,
                        const VecF* scale, SumsF<kRows, kVectors>& total) {
  constexpr bool kWhole = kLayout.scales_per_block() == 1;
  constexpr int32_t kOffset = offset_left(kLayout);
  constexpr auto kTimes = static_cast<uint32_t>(kOffset / (kWhole ? kSumFactor : kHalfSumFactor));
  static_assert(kOffset == 0 || std::has_single_bit(kTimes));
  SumsI<kRows, kVectors> sum;
  for (size_t r = 0; r < kRows; ++r) {
    const int32_t* from = kWhole ? x.minus_sum + r : x.minus_half_sum + 2 * r + kHalf;
    // In vectors: an integer in a register of its own would have to cross over to them.
    VecI begin = hn::Zero(TagI());
    if constexpr (kOffset != 0)
      begin = hn::ShiftLeft<std::countr_zero(kTimes)>(hn::Set(TagI(), *from));
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = begin;
  }
  step<kLayout, kAhead, kHalf * 4, kRows, kVectors>(x, upper, q, first, sum);
  step<kLayout, kAhead, kHalf * 4 + 1, kRows, kVectors>(x, upper, q, first, sum);
  step<kLayout, kAhead, kHalf * 4 + 2, kRows, kVectors>(x, upper, q, first, sum);
  step<kLayout, kAhead, kHalf * 4 + 3, kRows, kVectors>(x, upper, q, first, sum);
  if constexpr (kWhole) {
    step<kLayout, kAhead, 4, kRows, kVectors>(x, upper, q, first, sum);
    step<kLayout, kAhead, 5, kRows, kVectors>(x, upper, q, first, sum);
    step<kLayout, kAhead, 6, kRows, kVectors>(x, upper, q, first, sum);
    step<kLayout, kAhead, 7, kRows, kVectors>(x, upper, q, first, sum);
  }
  const Tag d;
  for (size_t r = 0; r < kRows; ++r) {
    const VecF by = hn::Set(d, x.scale[r]);
    for (size_t v = 0; v < kVectors; ++v)
      total[r][v] = hn::MulAdd(hn::Mul(hn::ConvertTo(d, sum[r][v]), scale[v]), by, total[r][v]);
  }
}

// Rows times kVectors * kOutputs outputs of the panel from `first` on.
template <QuantizedLayout kLayout, Ahead kAhead, size_t kRows, size_t kVectors>
HWY_NOINLINE void tile(Rows x, size_t n_in, const uint8_t* HWY_RESTRICT panel, size_t first,
                       const Out& out) {
  constexpr size_t kScales = kLayout.scales_per_block();
  const Tag d;
  SumsF<kRows, kVectors> total;
  for (size_t r = 0; r < kRows; ++r)
    for (size_t v = 0; v < kVectors; ++v) total[r][v] = hn::Zero(d);
  const uint8_t* at = panel;
  for (size_t input = 0; input < n_in; input += kLayout.inputs_per_head()) {
    const uint8_t* head = at;
    prefetch_ahead<kAhead>(at, kLayout.head_bytes());
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, x.next_block()) {
      const uint8_t* upper = at + kLayout.scale_bytes();
      const uint8_t* q = upper + kLayout.upper_bytes();
      VecF scale[kVectors];
      const auto read_scales = [&](size_t half) HWY_ATTR {
        for (size_t v = 0; v < kVectors; ++v)
          scale[v] = load_scale<kLayout>(head, at, half, first + v * kOutputs);
      };
      read_scales(0);
      segment<kLayout, kAhead, 0, kRows, kVectors>(x, upper, q, first, scale, total);
      if constexpr (kScales == 2) {
        read_scales(1);
        segment<kLayout, kAhead, 1, kRows, kVectors>(x, upper, q, first, scale, total);
      }
      if constexpr (kLayout.has_min) {
        for (size_t v = 0; v < kVectors; ++v) {
          const VecF min = load_min<kLayout>(head, at, first + v * kOutputs);
          for (size_t r = 0; r < kRows; ++r)
            total[r][v] = hn::NegMulAdd(min, hn::Set(d, x.scaled_sum[r]), total[r][v]);
        }
      }
      at += kLayout.block_bytes();
    }
  }
  for (size_t r = 0; r < kRows; ++r)
    for (size_t v = 0; v < kVectors; ++v) {
      float* to = out.to + r * out.stride + first + v * kOutputs;
      hn::StoreU(out.accumulate ? hn::Add(hn::LoadU(d, to), total[r][v]) : total[r][v], d, to);
    }
}

// Most rows of a tile, and vectors of outputs beside each other: what the registers hold twice, as
// integers and as sums.
inline constexpr size_t kTileRows = HWY_TARGET <= HWY_AVX3 ? 6 : 4;
template <size_t kRows>
inline constexpr size_t kTileVectors = HWY_TARGET <= HWY_AVX3 ? (kRows == 1 ? 4 : 2)
                                                              : (kRows == 1   ? 4
                                                                 : kRows == 2 ? 2
                                                                              : 1);

template <QuantizedLayout kLayout, size_t kRows>
void all_outputs(const Rows& x, size_t n_in, const uint8_t* panel, const Out& out) {
  constexpr size_t kVectors = std::min(kTileVectors<kRows>, kPanelOutputs / kOutputs);
  for (size_t first = 0; first < kPanelOutputs; first += kVectors * kOutputs) {
    if constexpr (kLayout.f32_scales)  // it was unpacked just now
      tile<kLayout, Ahead::kNothing, kRows, kVectors>(x, n_in, panel, first, out);
    else
      with_ahead(x.panel_is_new && first == 0, [&]<Ahead kAhead>() HWY_ATTR {
        tile<kLayout, kAhead, kRows, kVectors>(x, n_in, panel, first, out);
      });
  }
}

template <QuantizedLayout kLayout>
void some_rows(const Rows& x, size_t n_rows, size_t n_in, const uint8_t* panel, const Out& out) {
  switch (n_rows) {
    case 1:
      return all_outputs<kLayout, 1>(x, n_in, panel, out);
    case 2:
      return all_outputs<kLayout, 2>(x, n_in, panel, out);
    case 3:
      return all_outputs<kLayout, 3>(x, n_in, panel, out);
    case 4:
      return all_outputs<kLayout, 4>(x, n_in, panel, out);
    case 5:
      if constexpr (kTileRows > 4) return all_outputs<kLayout, 5>(x, n_in, panel, out);
      break;
    default:
      return all_outputs<kLayout, kTileRows>(x, n_in, panel, out);
  }
}

// The panel in the form that takes the fewest instructions per tile: see unpacked().
template <QuantizedType kType, Ahead kAhead>
void unpack(const uint8_t* HWY_RESTRICT at, size_t n_in, uint8_t* HWY_RESTRICT to) {
  constexpr QuantizedLayout kFrom = quantized_layout(kType), kTo = unpacked(kFrom);
  const Tag d;
  for (size_t input = 0; input < n_in; input += kFrom.inputs_per_head()) {
    const uint8_t* head = at;
    prefetch_ahead<kAhead>(at, kFrom.head_bytes());
    at += kFrom.head_bytes();
    for (size_t b = 0; b < kFrom.blocks_per_head; ++b) {
      prefetch_ahead<kAhead>(at, kFrom.block_bytes());
      const uint8_t* upper = at + kFrom.scale_bytes();
      const uint8_t* q = upper + kFrom.upper_bytes();
      auto* numbers = reinterpret_cast<float*>(to);
      for (size_t first = 0; first < kPanelOutputs; first += kOutputs) {
        for (size_t part = 0; part < kFrom.scales_per_block(); ++part)
          hn::StoreU(load_scale<kFrom>(head, at, part, first), d,
                     numbers + part * kPanelOutputs + first);
        if constexpr (kFrom.has_min)
          hn::StoreU(load_min<kFrom>(head, at, first), d, numbers + kPanelOutputs + first);
        const auto store = [&]<size_t... kStep>(std::index_sequence<kStep...>) HWY_ATTR {
          (hn::StoreU(load_weights<kFrom, kStep>(upper, q, first), Bytes(),
                      to + kTo.head_bytes() + (kStep * kPanelOutputs + first) * 4),
           ...);
        };
        store(std::make_index_sequence<kQuantizedInputs / 4>());
      }
      at += kFrom.block_bytes();
      to += kTo.head_bytes() + kTo.block_bytes();
    }
  }
}

#else  // machines that are older than AVX2: right, not fast

inline constexpr size_t kTileRows = 4;

template <QuantizedLayout kLayout>
float output_of(Rows x, size_t r, size_t n_in, const uint8_t* at, size_t output) {
  float total = 0.0f;
  for (size_t input = 0; input < n_in; input += kLayout.inputs_per_head()) {
    const uint8_t* head = at;
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, x.next_block()) {
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
void some_rows(const Rows& x, size_t n_rows, size_t n_in, const uint8_t* panel, const Out& out) {
  for (size_t r = 0; r < n_rows; ++r)
    for (size_t output = 0; output < kPanelOutputs; ++output) {
      float& to = out.to[r * out.stride + output];
      const float sum = output_of<kLayout>(x, r, n_in, panel, output);
      to = out.accumulate ? to + sum : sum;
    }
}

#endif

template <QuantizedLayout kLayout>
void product_of(const QuantizedRows& x, size_t begin, size_t end, const uint8_t* panel, size_t n_in,
                size_t n_cols, bool accumulate, float* y, size_t y_stride) {
  HWY_ALIGN float sums[kTileRows * kPanelOutputs];
  for (size_t row = begin, n_rows; row < end; row += n_rows) {
    n_rows = std::min({kTileRows, end - row, x.group - row % x.group});
    const size_t block = x.block(row, 0, n_in);
    const Rows rows = {
        x.q + block * kQuantizedInputs, x.scale + block, x.scaled_sum + block, x.minus_sum + block,
        x.minus_half_sum + 2 * block,   x.group,         row == begin};
    float* to = y + (row - begin) * y_stride;
    if (n_cols == kPanelOutputs) {
      some_rows<kLayout>(rows, n_rows, n_in, panel, {to, y_stride, accumulate});
      continue;
    }
    some_rows<kLayout>(rows, n_rows, n_in, panel, {sums, kPanelOutputs, false});
    for (size_t r = 0; r < n_rows; ++r)
      for (size_t j = 0; j < n_cols; ++j) {
        const float sum = sums[r * kPanelOutputs + j];
        to[r * y_stride + j] = accumulate ? to[r * y_stride + j] + sum : sum;
      }
  }
}

template <QuantizedType kType>
void product(const QuantizedRows& x, size_t begin, size_t end, const uint8_t* panel, size_t n_in,
             size_t n_cols, bool accumulate, float* y, size_t y_stride,
             [[maybe_unused]] void* scratch) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (quantized_scratch_bytes(kType, kLayout.inputs_per_head()) > 0)
    if (scratch && end - begin >= kRowsToUnpack) {
      auto* to = static_cast<uint8_t*>(scratch);
      with_ahead(true, [&]<Ahead kAhead>() HWY_ATTR { unpack<kType, kAhead>(panel, n_in, to); });
      return product_of<unpacked(kLayout)>(x, begin, end, to, n_in, n_cols, accumulate, y,
                                           y_stride);
    }
#endif
  product_of<kLayout>(x, begin, end, panel, n_in, n_cols, accumulate, y, y_stride);
}

void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch) {
  const auto* bytes = static_cast<const uint8_t*>(panel);
  switch (type) {
#define KVASIR_PRODUCT_OF(name)                                                            \
  case QuantizedType::name:                                                                \
    return product<QuantizedType::name>(x, begin, end, bytes, n_in, n_cols, accumulate, y, \
                                        y_stride, scratch);
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

// Below it a block counts as zero: 127 / x has to be finite.
inline constexpr float kSmallest = 0x1p-100f;

// One block of 32 inputs.
void quantize_block(const float* HWY_RESTRICT x, int8_t* HWY_RESTRICT q, float* scale,
                    float* scaled_sum, int32_t* HWY_RESTRICT minus_sum,
                    int32_t* HWY_RESTRICT minus_half_sum) {
  const Tag d;
  const TagI di;
  const hn::RebindToUnsigned<Tag> du;
  const hn::Rebind<int8_t, Tag> d8;
  // Magnitudes are in the order of their bits, and what is not finite is above all of them.
  constexpr uint32_t kInfinity = 0x7F800000;
  auto largest = hn::Zero(du);
  for (size_t i = 0; i < kQuantizedInputs; i += kOutputs)
    largest = hn::Max(largest, hn::BitCast(du, hn::Abs(hn::LoadU(d, x + i))));
  const uint32_t bits = hn::GetLane(hn::MaxOfLanes(du, largest));
  if (bits >= kInfinity) {  // conversions of NaN are no numbers to sum up
    std::memset(q, 0, kQuantizedInputs);
    *minus_sum = minus_half_sum[0] = minus_half_sum[1] = 0;
    *scale = *scaled_sum = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const auto max = std::bit_cast<float>(bits);
  const bool zero = max < kSmallest;
  const float by = zero ? 0.0f : max / 127.0f;
  const auto inverse = hn::Set(d, zero ? 0.0f : 127.0f / max);
  VecI total[2] = {hn::Zero(di), hn::Zero(di)};
  for (size_t i = 0; i < kQuantizedInputs; i += kOutputs) {
    const auto steps = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    total[i / 16] = hn::Add(total[i / 16], steps);
    hn::StoreU(hn::DemoteTo(d8, steps), d8, q + i);
  }
  // Both halves across the lanes at once: a sum of 16 steps has 12 bits.
  const int32_t both =
      hn::GetLane(hn::SumOfLanes(di, hn::Add(total[0], hn::ShiftLeft<16>(total[1]))));
  const int32_t first = static_cast<int16_t>(both & 0xFFFF), second = (both - first) >> 16;
  *scale = by;
  *scaled_sum = by * static_cast<float>(first + second);
  *minus_sum = -kSumFactor * (first + second);
  minus_half_sum[0] = -kHalfSumFactor * first;
  minus_half_sum[1] = -kHalfSumFactor * second;
}

void quantize_rows(const float* x, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& out) {
  for (size_t row = begin; row < end; ++row) {
    const size_t first = out.block(row, 0, n_in);
    for (size_t b = 0; b < n_in / kQuantizedInputs; ++b) {
      const size_t block = first + b * out.group;
      quantize_block(x + row * n_in + b * kQuantizedInputs, out.q + block * kQuantizedInputs,
                     out.scale + block, out.scaled_sum + block, out.minus_sum + block,
                     out.minus_half_sum + 2 * block);
    }
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(quantized_product);
HWY_EXPORT(quantize_rows);

QuantizedRows quantized_rows_at(void* memory, size_t n_rows, size_t n_in) {
  const size_t n_blocks = quantized_blocks(n_rows, n_in);
  auto* q = static_cast<int8_t*>(memory);
  auto* scale = reinterpret_cast<float*>(q + n_blocks * kQuantizedInputs);
  auto* scaled_sum = scale + n_blocks;
  auto* minus_sum = reinterpret_cast<int32_t*>(scaled_sum + n_blocks);
  return {q, scale, scaled_sum, minus_sum, minus_sum + n_blocks, quantized_group(n_rows)};
}

void quantize_rows(const float* x, size_t begin, size_t end, size_t n_in,
                   const QuantizedRows& out) {
  HWY_DYNAMIC_DISPATCH(quantize_rows)(x, begin, end, n_in, out);
}

void quantized_product(QuantizedType type, const QuantizedRows& x, size_t begin, size_t end,
                       const void* panel, size_t n_in, size_t n_cols, bool accumulate, float* y,
                       size_t y_stride, void* scratch) {
  HWY_DYNAMIC_DISPATCH(quantized_product)
  (type, x, begin, end, panel, n_in, n_cols, accumulate, y, y_stride, scratch);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
