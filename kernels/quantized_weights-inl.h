// Reading the blocks of a quantised panel, per SIMD target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_QUANTIZED_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_QUANTIZED_WEIGHTS_INL_H_
#undef KVASIR_KERNELS_QUANTIZED_WEIGHTS_INL_H_
#else
#define KVASIR_KERNELS_QUANTIZED_WEIGHTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_panel.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using TagI = hn::RebindToSigned<Tag>;
using VecF = hn::Vec<Tag>;
using VecI = hn::Vec<TagI>;
inline constexpr size_t kOutputs = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;  // per vector

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

using Bytes = hn::Repartition<uint8_t, Tag>;
using VecB = hn::Vec<Bytes>;

template <int kBits>
HWY_INLINE VecB shift_bytes_right(VecB v) {
  const hn::Repartition<uint16_t, Tag> d16;
  return hn::BitCast(Bytes(), hn::ShiftRight<kBits>(hn::BitCast(d16, v)));
}

template <int kBits>
HWY_INLINE VecB shift_bytes_left(VecB v) {
  const hn::Repartition<uint16_t, Tag> d16;
  return hn::BitCast(Bytes(), hn::ShiftLeft<kBits>(hn::BitCast(d16, v)));
}

// The two bits of input group `s` in the word of upper bits, in bits 4 and 5.
template <size_t kShift>
HWY_INLINE VecB upper_pair(VecB word) {
  const auto pair = hn::Set(Bytes(), 0x30);
  if constexpr (kShift == 0) return hn::And(shift_bytes_left<4>(word), pair);
  if constexpr (kShift == 1) return hn::And(shift_bytes_left<2>(word), pair);
  if constexpr (kShift == 2) return hn::And(word, pair);
  return hn::And(shift_bytes_right<2>(word), pair);
}

// Inputs 4 kStep to 4 kStep + 3 of a block, for the outputs of the vector that begins at output
// `first`. upper and q: those of the block.
template <QuantizedLayout kLayout, size_t kStep>
HWY_INLINE VecB load_weights(const uint8_t* HWY_RESTRICT upper, const uint8_t* HWY_RESTRICT q,
                             size_t first) {
  const Bytes d;
  if constexpr (kLayout.bits == 8) {
    return hn::LoadU(d, q + (kStep * kPanelOutputs + first) * 4);
  } else {
    const auto nibbles = hn::LoadU(d, q + (kStep % 4 * kPanelOutputs + first) * 4);
    auto w = hn::And(kStep < 4 ? nibbles : shift_bytes_right<4>(nibbles), hn::Set(d, 0x0F));
    if constexpr (kLayout.levels) w = hn::TableLookupBytes(hn::LoadDup128(d, kIq4NlLevels), w);
    if constexpr (kLayout.bits == 5) {
      const auto fifth = hn::LoadMaskBits(d, upper + (kStep * kPanelOutputs + first) / 2);
      w = hn::Or(w, hn::IfThenElseZero(fifth, hn::Set(d, 0x10)));
    }
    if constexpr (kLayout.bits == 6) {
      const auto word = hn::LoadU(d, upper + (kStep / 4 * kPanelOutputs + first) * 4);
      w = hn::Or(w, upper_pair<kStep % 4>(word));
    }
    return w;
  }
}

HWY_INLINE VecF load_f16(const uint8_t* at) {
  return load_row(Tag(), reinterpret_cast<const hwy::float16_t*>(at));
}

template <bool kSigned>
HWY_INLINE VecF load_integer_scale(const uint8_t* at) {
  const Tag d;
  if constexpr (kSigned) {
    const hn::Rebind<int8_t, Tag> d8;
    return hn::ConvertTo(d,
                         hn::PromoteTo(TagI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(at))));
  } else {
    const hn::Rebind<uint8_t, Tag> d8;
    return hn::ConvertTo(d, hn::PromoteTo(TagI(), hn::LoadU(d8, at)));
  }
}

// The scales of the outputs of a vector from output `first` on: of the part-th inputs_per_scale
// inputs of a block. head and integers: those of the block.
template <QuantizedLayout kLayout>
HWY_INLINE VecF load_scale(const uint8_t* HWY_RESTRICT head, const uint8_t* HWY_RESTRICT integers,
                           size_t part, size_t first) {
  const VecF d = load_f16(head + 2 * first);
  if constexpr (!kLayout.integer_scales()) return d;
  return hn::Mul(
      d, load_integer_scale<kLayout.scale_is_signed>(integers + part * kPanelOutputs + first));
}

// Their mins, of a layout that has mins; its blocks have one scale.
template <QuantizedLayout kLayout>
HWY_INLINE VecF load_min(const uint8_t* HWY_RESTRICT head, const uint8_t* HWY_RESTRICT integers,
                         size_t first) {
  static_assert(kLayout.has_min && kLayout.scales_per_block() == 1);
  const VecF min = load_f16(head + 2 * (kPanelOutputs + first));
  if constexpr (!kLayout.integer_scales()) return min;
  return hn::Mul(min, load_integer_scale<false>(integers + kPanelOutputs + first));
}

#else  // machines that are older than AVX2: right, not fast

template <QuantizedLayout kLayout>
HWY_INLINE int32_t weight_at(const uint8_t* upper, const uint8_t* q, size_t input, size_t output) {
  const size_t step = input / 4, byte = input % 4;
  if constexpr (kLayout.bits == 8) return q[(step * kPanelOutputs + output) * 4 + byte];
  const uint8_t pair = q[(step % 4 * kPanelOutputs + output) * 4 + byte];
  int32_t w = step < 4 ? pair & 15 : pair >> 4;
  if constexpr (kLayout.levels) w = kIq4NlLevels[w];
  if constexpr (kLayout.bits == 5)
    w |= (upper[(step * kPanelOutputs + output) / 2] >> (output % 2 * 4 + byte) & 1) << 4;
  if constexpr (kLayout.bits == 6)
    w |= (upper[(step / 4 * kPanelOutputs + output) * 4 + byte] >> step % 4 * 2 & 3) << 4;
  return w;
}

HWY_INLINE float widened(const uint8_t* f16) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(load_row(d, reinterpret_cast<const hwy::float16_t*>(f16)));
}

#endif

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_QUANTIZED_WEIGHTS_INL_H_
