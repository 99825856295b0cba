// Bytes of GGUF's blocks (github.com/ggml-org/ggml, ggml-common.h) to their places in a panel.
// Works on words of four bytes: elements that lie side by side in a block stay side by side.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/quantized_panel.h"

#include <array>
#include <cstring>

namespace kvasir {
namespace {

using kernels::kPanelOutputs;
using kernels::QuantizedLayout;
using kernels::QuantizedType;

using Words = std::array<uint32_t, 8>;  // 32 bytes, or 32 elements a byte each
constexpr uint32_t kLowNibbles = 0x0F0F0F0F, kPairs = 0x03030303;

uint32_t word(const std::byte* at) {
  uint32_t w;
  std::memcpy(&w, at, sizeof w);
  return w;
}

Words words(const std::byte* at) {
  Words w;
  std::memcpy(w.data(), at, sizeof w);
  return w;
}

// Where output j of a block of a panel lies.
struct Place {
  const QuantizedLayout& layout;
  std::byte *head, *block;
  uint32_t output;

  void set_scale(size_t which, std::byte value) const {
    block[which * kPanelOutputs + output] = value;
  }
  void set_f16(size_t which, const std::byte* from) const {
    std::memcpy(head + (which * kPanelOutputs + output) * 2, from, 2);
  }
  std::byte* upper() const { return block + layout.scale_bytes(); }
  // Word s of q: inputs 4 s to 4 s + 3 in the low nibbles, or in the bytes.
  void set_word(size_t s, uint32_t value) const {
    std::memcpy(upper() + layout.upper_bytes() + (s * kPanelOutputs + output) * 4, &value, 4);
  }
  // Fifth bits of inputs 4 s to 4 s + 3, in the low four of `bits`. Others' bits are kept.
  void set_fifth(size_t s, uint32_t bits) const {
    std::byte& pair = upper()[(s * kPanelOutputs + output) / 2];
    pair |= static_cast<std::byte>((bits & 15) << (output % 2 * 4));
  }
  void set_pairs(size_t w, uint32_t value) const {
    std::memcpy(upper() + (w * kPanelOutputs + output) * 4, &value, 4);
  }
  // 32 elements as nibbles, one a byte.
  void set_nibbles(const Words& nibbles) const {
    for (size_t s = 0; s < 4; ++s) set_word(s, nibbles[s] | nibbles[s + 4] << 4);
  }
};

// Blocks of 32: scale, min, fifth bits and quants, as far as the type has them. GGUF's nibbles of
// inputs i and i + 16 share a byte, as here.
void pack_block(const Place& to, const std::byte* from) {
  const QuantizedLayout& layout = to.layout;
  to.set_f16(0, from);
  from += 2;
  if (layout.has_min) {  // added there, subtracted here
    const std::byte min[2] = {from[0], from[1] ^ std::byte{0x80}};
    to.set_f16(1, min);
    from += 2;
  }
  if (layout.bits == 8) {
    const Words q = words(from);
    for (size_t s = 0; s < 8; ++s) to.set_word(s, q[s] ^ 0x80808080u);  // plus the offset
    return;
  }
  if (layout.bits == 5) {
    const uint32_t fifth = word(from);
    for (size_t s = 0; s < 8; ++s) to.set_fifth(s, fifth >> 4 * s);
    from += 4;
  }
  for (size_t s = 0; s < 4; ++s) to.set_word(s, word(from + 4 * s));
}

// Low or high nibbles of 32 bytes, one a byte.
Words nibbles(const std::byte* at, bool high) {
  Words w = words(at);
  for (uint32_t& four : w) four = (high ? four >> 4 : four) & kLowNibbles;
  return w;
}

// Scale and min of block b of Q4_K and Q5_K, six bits each in twelve bytes: the first four keep
// theirs in bytes 0-3 and 4-7; of the others bytes 8-11 hold the low nibbles of scale and min, the
// top of bytes 0-3 and 4-7 their upper pairs.
std::array<std::byte, 2> six_bits(const std::byte* packed, size_t b) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(packed[i]); };
  const uint32_t scale = b < 4 ? at(b) & 63 : (at(b + 4) & 15) | at(b - 4) >> 6 << 4;
  const uint32_t min = b < 4 ? at(b + 4) & 63 : at(b + 4) >> 4 | at(b) >> 6 << 4;
  return {static_cast<std::byte>(scale), static_cast<std::byte>(min)};
}

// Block b of a Q4_K or Q5_K: f16 d, dmin; scales [12]; fifth bits [32], bit b of byte i; quants
// [128], blocks 2 i and 2 i + 1 in the low and high nibbles of 32 bytes.
void pack_k_block(const Place& to, const std::byte* from, size_t b) {
  if (b == 0) {
    to.set_f16(0, from);
    to.set_f16(1, from + 2);
  }
  const auto [scale, min] = six_bits(from + 4, b);
  to.set_scale(0, scale);
  to.set_scale(1, min);
  const std::byte* q = from + 16;
  if (to.layout.bits == 5) {
    const Words fifth = words(q);
    for (size_t s = 0; s < 8; ++s) {
      const uint32_t bits = fifth[s] >> b;
      to.set_fifth(s, (bits & 1) | (bits >> 7 & 2) | (bits >> 14 & 4) | (bits >> 21 & 8));
    }
    q += 32;
  }
  to.set_nibbles(nibbles(q + b / 2 * 32, b % 2 == 1));
}

// Block b of a Q6_K: low nibbles [128], upper pairs [64], i8 scales [16], f16 d. In each half of
// 128 elements blocks 0 and 2, 1 and 3 share the bytes of nibbles, all four those of pairs.
void pack_q6_k_block(const Place& to, const std::byte* from, size_t b) {
  if (b == 0) to.set_f16(0, from + 208);
  to.set_scale(0, from[192 + 2 * b]);
  to.set_scale(1, from[192 + 2 * b + 1]);
  const size_t half = b / 4, plane = b % 4;
  to.set_nibbles(nibbles(from + half * 64 + plane % 2 * 32, plane >= 2));
  const Words pairs = words(from + 128 + half * 32);
  for (size_t w = 0; w < 2; ++w) {
    uint32_t packed = 0;
    for (size_t t = 0; t < 4; ++t) packed |= (pairs[4 * w + t] >> 2 * plane & kPairs) << 2 * t;
    to.set_pairs(w, packed);
  }
}

}  // namespace

std::optional<QuantizedType> quantized_type(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
      return QuantizedType::kQ4_0;
    case GgmlType::kQ4_1:
      return QuantizedType::kQ4_1;
    case GgmlType::kQ5_0:
      return QuantizedType::kQ5_0;
    case GgmlType::kQ5_1:
      return QuantizedType::kQ5_1;
    case GgmlType::kQ8_0:
      return QuantizedType::kQ8_0;
    case GgmlType::kIQ4_NL:
      return QuantizedType::kIQ4_NL;
    case GgmlType::kQ4_K:
      return QuantizedType::kQ4_K;
    case GgmlType::kQ5_K:
      return QuantizedType::kQ5_K;
    case GgmlType::kQ6_K:
      return QuantizedType::kQ6_K;
    default:
      return std::nullopt;
  }
}

void pack_quantized_panel(QuantizedType type, const std::byte* rows, size_t row_bytes,
                          uint32_t n_rows, uint32_t n_in, std::byte* panel) {
  const QuantizedLayout layout = kernels::quantized_layout(type);
  const size_t n_heads = n_in / layout.inputs_per_head(), from_bytes = row_bytes / n_heads;
  const size_t to_bytes = layout.head_bytes() + layout.blocks_per_head * layout.block_bytes();
  std::memset(panel, 0, n_heads * to_bytes);  // outputs that are missing, bits that are or-ed
  for (size_t h = 0; h < n_heads; ++h) {
    for (uint32_t j = 0; j < n_rows; ++j) {
      const std::byte* from = rows + j * row_bytes + h * from_bytes;
      std::byte* head = panel + h * to_bytes;
      Place to{layout, head, head + layout.head_bytes(), j};
      if (!layout.integer_scales()) {
        pack_block(to, from);
        continue;
      }
      for (size_t b = 0; b < layout.blocks_per_head; ++b, to.block += layout.block_bytes())
        type == QuantizedType::kQ6_K ? pack_q6_k_block(to, from, b) : pack_k_block(to, from, b);
    }
  }
}

}  // namespace kvasir
