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

  constexpr bool integer_scales() const { return blocks_per_head > 1; }
  constexpr size_t scales_per_block() const { return kQuantizedInputs / inputs_per_scale; }
  // A head, then its blocks. The head: f16 d [64], then f16 m or dmin [64] where there is a min.
  constexpr size_t head_bytes() const { return kPanelOutputs * (has_min ? 4 : 2); }
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

// Scales of rows have this many values per octave, so that an unpacked panel can hold its own
// scales times each of them. Of SmolLM2 135M in Q8_0, 200,000 bytes of Pride and Prejudice, 16
// leave the perplexity as it is (23.331; 23.261 in f32), 8 do not (23.349; products take 0.98 of
// the time).
inline constexpr size_t kScaleLevels = 16;

// Unpacked scales are 2^20 times as large, and origins of rows (quantized_rows.h) 2^-20 times, so
// that the origin of every finite scale is finite.
inline constexpr int kOriginShift = 20;

// The offset of the q of an unpacked panel with kScaleLevels levels; with one, it is the type's.
inline constexpr int32_t kUnpackedOffset = 128;

// Some outputs of a panel that was unpacked for many rows: a byte for each q, and each scale times
// each level of a row's scale. A block of 32 inputs, in this order:
//   scales  f32 [levels, scales_per_block, outputs]: of one level, the scale; of kScaleLevels, it
//           times 1 + level / kScaleLevels, times 2^kOriginShift
//   mins    f32 [outputs] where there is a min
//   q       u8 [8, outputs, 4], [s, j, b] is input 4 s + b of output j
struct UnpackedLayout {
  size_t levels, scales_per_block, outputs;
  bool has_min;

  constexpr size_t mins_at() const { return outputs * levels * scales_per_block * sizeof(float); }
  constexpr size_t q_at() const { return mins_at() + (has_min ? outputs * sizeof(float) : 0); }
  constexpr size_t block_bytes() const { return q_at() + outputs * kQuantizedInputs; }
};
constexpr UnpackedLayout unpacked(const QuantizedLayout& layout, size_t levels, size_t outputs) {
  return {levels, layout.scales_per_block(), outputs, layout.has_min};
}

// Bytes of a panel of n_in inputs, a multiple of inputs_per_head().
constexpr size_t quantized_panel_bytes(QuantizedType type, size_t n_in) {
  const QuantizedLayout layout = quantized_layout(type);
  return n_in / layout.inputs_per_head() *
         (layout.head_bytes() + layout.blocks_per_head * layout.block_bytes());
}

// The levels of IQ4_NL plus 128, by nibble: denser around zero than evenly spaced ones.
inline constexpr uint8_t kIq4NlLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};

}  // namespace kvasir::kernels
