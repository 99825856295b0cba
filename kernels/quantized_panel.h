// How a panel of quantised weights lies in memory: the blocks of 64 outputs side by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

// The block types of GGUF that products read as they are.
enum class QuantizedType : uint32_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kIQ4_NL,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

inline constexpr size_t kPanelOutputs = 64;     // outputs per panel
inline constexpr size_t kQuantizedInputs = 32;  // inputs per block

// A weight is scale * (q - offset) - min. The scale of a block is `d` (one block per head), or `d`
// times an integer per `inputs_per_scale` inputs; the min is `m`, or `dmin` times an integer.
struct QuantizedLayout {
  uint32_t bits;              // of q: 4, 5, 6 or 8
  int32_t offset;             // IQ4_NL: of its levels, which are signed
  uint32_t blocks_per_head;   // 1, or 8 with integer scales
  uint32_t inputs_per_scale;  // 32 or 16
  bool has_min, scale_is_signed, levels;
  bool f32_scales = false;  // a panel that was unpacked for many rows

  constexpr bool integer_scales() const { return blocks_per_head > 1; }
  constexpr size_t scales_per_block() const { return kQuantizedInputs / inputs_per_scale; }
  // A head, then its blocks. The head: f16 d [64], then f16 m or dmin [64] where there is a min; or
  // f32 scales [scales_per_block, 64], then f32 mins [64] where there is a min.
  constexpr size_t head_bytes() const {
    if (f32_scales) return kPanelOutputs * 4 * (scales_per_block() + (has_min ? 1 : 0));
    return kPanelOutputs * (has_min ? 4 : 2);
  }
  // A block, in this order:
  //   integer scales  u8 or i8 [scales_per_block, 64], then u8 mins [64] where there is a min
  constexpr size_t scale_bytes() const {
    return integer_scales() ? kPanelOutputs * (scales_per_block() + (has_min ? 1 : 0)) : 0;
  }
  //   upper bits      5 bits: [8, 64] nibbles; bit b of nibble [s, j] belongs to input 4 s + b.
  //                   6 bits: u8 [2, 64, 4]; bits 2t and 2t + 1 of [w, j, b]: input 16 w + 4 t + b
  constexpr size_t upper_bytes() const { return bits == 5 ? 256 : bits == 6 ? 512 : 0; }
  //   q               8 bits: u8 [8, 64, 4], [s, j, b] is input 4 s + b of output j. Others: u8
  //                   [4, 64, 4], the low nibble of [s, j, b] input 4 s + b, the high one 16 more
  constexpr size_t q_bytes() const { return kPanelOutputs * (bits == 8 ? 32 : 16); }
  constexpr size_t block_bytes() const { return scale_bytes() + upper_bytes() + q_bytes(); }
  constexpr size_t inputs_per_head() const { return kQuantizedInputs * blocks_per_head; }
};

constexpr QuantizedLayout quantized_layout(QuantizedType type) {
  switch (type) {
    case QuantizedType::kQ4_0:
      return {4, 8, 1, 32, false, false, false};
    case QuantizedType::kQ4_1:
      return {4, 0, 1, 32, true, false, false};
    case QuantizedType::kQ5_0:
      return {5, 16, 1, 32, false, false, false};
    case QuantizedType::kQ5_1:
      return {5, 0, 1, 32, true, false, false};
    case QuantizedType::kQ8_0:
      return {8, 128, 1, 32, false, false, false};
    case QuantizedType::kIQ4_NL:
      return {4, 128, 1, 32, false, false, true};
    case QuantizedType::kQ4_K:
      return {4, 0, 8, 32, true, false, false};
    case QuantizedType::kQ5_K:
      return {5, 0, 8, 32, true, false, false};
    case QuantizedType::kQ6_K:
      return {6, 32, 8, 16, false, true, false};
  }
  return {};
}

// The same weights with a byte for each q and scales that are one number: what a product of many
// rows reads fastest.
constexpr QuantizedLayout unpacked(const QuantizedLayout& layout) {
  return {.bits = 8,
          .offset = layout.offset,
          .blocks_per_head = 1,
          .inputs_per_scale = layout.inputs_per_scale,
          .has_min = layout.has_min,
          .scale_is_signed = false,
          .levels = false,
          .f32_scales = true};
}

// Bytes of a panel of n_in inputs, a multiple of inputs_per_head().
constexpr size_t quantized_panel_bytes(const QuantizedLayout& layout, size_t n_in) {
  return n_in / layout.inputs_per_head() *
         (layout.head_bytes() + layout.blocks_per_head * layout.block_bytes());
}
constexpr size_t quantized_panel_bytes(QuantizedType type, size_t n_in) {
  return quantized_panel_bytes(quantized_layout(type), n_in);
}

// The levels of IQ4_NL plus 128, by nibble: denser around zero than evenly spaced ones.
inline constexpr uint8_t kIq4NlLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};

}  // namespace kvasir::kernels
