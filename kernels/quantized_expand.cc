// See quantized_expand.h. A vector holds four inputs of each output, as a panel of pairs does two.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized_expand.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_expand.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/narrow-inl.h"
#include "kernels/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Where the numbers of a block stand.
struct Block {
  const uint8_t *head, *scales, *upper, *q;
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// Byte kByte of each lane: a weight is that times scale, plus shift.
template <int kByte>
HWY_INLINE VecF weight(VecB four, VecF scale, VecF shift) {
  const hn::RebindToUnsigned<Tag> du;
  const auto lanes = hn::BitCast(du, four);
  const auto byte =
      hn::And(kByte == 0 ? lanes : hn::ShiftRight<8 * kByte>(lanes), hn::Set(du, 0xFFu));
  return hn::MulAdd(hn::ConvertTo(Tag(), hn::BitCast(TagI(), byte)), scale, shift);
}

HWY_INLINE void store_pair(VecF even, VecF odd, uint32_t* out) {
  const hn::RebindToUnsigned<Tag> du;
  const auto low = hn::ShiftRight<16>(bf16_in_upper_half(Tag(), even));
  const auto high = hn::And(bf16_in_upper_half(Tag(), odd), hn::Set(du, 0xFFFF0000u));
  hn::StoreU(hn::Or(low, high), du, out);
}

// Inputs 4 kStep to 4 kStep + 3 of a block.
template <QuantizedType kType, size_t kStep>
HWY_INLINE void expand_step(const Block& block, size_t first, VecF scale, VecF shift,
                            uint32_t* out) {
  const VecB four = load_weights<quantized_layout(kType), kStep>(block.upper, block.q, first);
  uint32_t* at = out + 2 * kStep * kPanelOutputs + first;
  store_pair(weight<0>(four, scale, shift), weight<1>(four, scale, shift), at);
  store_pair(weight<2>(four, scale, shift), weight<3>(four, scale, shift), at + kPanelOutputs);
}

// The half-th 16 inputs of a block, which have one scale.
template <QuantizedType kType, size_t kHalf>
HWY_INLINE void expand_half(const Block& block, size_t first, uint32_t* out) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  constexpr size_t kScale = kLayout.scales_per_block() == 1 ? 0 : kHalf;
  const Tag d;
  const VecF scale = load_scale<kLayout>(block.head, block.scales, kScale, first);
  VecF shift = hn::Mul(scale, hn::Set(d, static_cast<float>(-kLayout.offset)));
  if constexpr (kLayout.has_min)
    shift = hn::Neg(load_min<kLayout>(block.head, block.scales, first));
  expand_step<kType, 4 * kHalf + 0>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalf + 1>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalf + 2>(block, first, scale, shift, out);
  expand_step<kType, 4 * kHalf + 3>(block, first, scale, shift, out);
}

template <QuantizedType kType>
void expand_block(const Block& block, uint32_t* out) {
  for (size_t first = 0; first < kPanelOutputs; first += kOutputs) {
    expand_half<kType, 0>(block, first, out);
    expand_half<kType, 1>(block, first, out);
  }
}

#else  // machines that are older than AVX2: right, not fast

inline uint32_t rounded_bits(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(bf16_in_upper_half(d, hn::Set(d, x))) >> 16;
}

template <QuantizedType kType>
float weight_of(const Block& block, size_t input, size_t output) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  float scale = widened(block.head + 2 * output);
  if constexpr (kLayout.integer_scales()) {
    const uint8_t integer = block.scales[input / kLayout.inputs_per_scale * kPanelOutputs + output];
    scale *= static_cast<float>(kLayout.scale_is_signed ? static_cast<int8_t>(integer) : integer);
  }
  float shift = scale * static_cast<float>(-kLayout.offset);
  if constexpr (kLayout.has_min) {
    float min = widened(block.head + 2 * (kPanelOutputs + output));
    if constexpr (kLayout.integer_scales())
      min *= static_cast<float>(block.scales[kPanelOutputs + output]);
    shift = -min;
  }
  const int32_t w = weight_at<kLayout>(block.upper, block.q, input, output);
  return std::fma(static_cast<float>(w), scale, shift);
}

template <QuantizedType kType>
void expand_block(const Block& block, uint32_t* out) {
  for (size_t input = 0; input < kQuantizedInputs; input += 2)
    for (size_t output = 0; output < kPanelOutputs; ++output)
      out[input / 2 * kPanelOutputs + output] =
          rounded_bits(weight_of<kType>(block, input, output)) |
          rounded_bits(weight_of<kType>(block, input + 1, output)) << 16;
}

#endif

template <QuantizedType kType>
void expand(const uint8_t* at, size_t n_in, uint32_t* out) {
  constexpr QuantizedLayout kLayout = quantized_layout(kType);
  for (size_t input = 0; input < n_in;) {
    const uint8_t* head = at;
    at += kLayout.head_bytes();
    for (size_t b = 0; b < kLayout.blocks_per_head; ++b, input += kQuantizedInputs) {
      const uint8_t* upper = at + kLayout.scale_bytes();
      expand_block<kType>({head, at, upper, upper + kLayout.upper_bytes()},
                          out + input / 2 * kPanelOutputs);
      at += kLayout.block_bytes();
    }
  }
}

void expand_quantized_panel(QuantizedType type, const void* panel, size_t n_in, uint16_t* out) {
  const auto* bytes = static_cast<const uint8_t*>(panel);
  auto* pairs = reinterpret_cast<uint32_t*>(out);
  switch (type) {
#define KVASIR_EXPAND(name) \
  case QuantizedType::name: \
    return expand<QuantizedType::name>(bytes, n_in, pairs);
    KVASIR_EXPAND(kQ4_0)
    KVASIR_EXPAND(kQ4_1)
    KVASIR_EXPAND(kQ5_0)
    KVASIR_EXPAND(kQ5_1)
    KVASIR_EXPAND(kQ8_0)
    KVASIR_EXPAND(kIQ4_NL)
    KVASIR_EXPAND(kQ4_K)
    KVASIR_EXPAND(kQ5_K)
    KVASIR_EXPAND(kQ6_K)
#undef KVASIR_EXPAND
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(expand_quantized_panel);

void expand_quantized_panel(QuantizedType type, const void* panel, size_t n_in, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(expand_quantized_panel)(type, panel, n_in, out);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
