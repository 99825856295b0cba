// Eight neighbouring elements of a row of a weight matrix, loaded as GGUF's blocks lie and turned
// into f32. Block layouts: github.com/ggml-org/ggml, types of ggml-common.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/kv_chunk.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir::cuda {

// Eight bytes at an even address; at once where it is a multiple of eight.
KVASIR_DEVICE Bytes8 load_bytes8(uint64_t at) {
  if (at % sizeof(Bytes8) == 0) return load_at<Bytes8>(at);
  Bytes8 out{};
  KVASIR_UNROLL
  for (uint32_t i = 0; i < 4; ++i)
    out.word[i / 2] |= uint32_t{load_at<uint16_t>(at + uint64_t{2} * i)} << (16 * (i % 2));
  return out;
}
KVASIR_DEVICE uint32_t byte_of(const Bytes8& bytes, uint32_t i) {
  return bytes.word[i / 4] >> (8 * (i % 4)) & 0xffu;
}
KVASIR_DEVICE uint32_t nibble_of(const Bytes8& bytes, uint32_t i, uint32_t is_high) {
  return bytes.word[i / 4] >> (8 * (i % 4) + 4 * is_high) & 15u;
}

// load(): elements [8 * chunk, 8 * chunk + 8) of the row of `n_in` elements at this address; what
// lies behind its end is 0 and not read. Rows of blocks begin at even addresses.
template <WeightType kType>
struct WeightChunk;

template <>
struct WeightChunk<WeightType::kF32> : KvChunk<KvType::kF32> {};
template <>
struct WeightChunk<WeightType::kF16> : KvChunk<KvType::kF16> {};
template <>
struct WeightChunk<WeightType::kBF16> : KvChunk<KvType::kBF16> {};
template <>
struct WeightChunk<WeightType::kQ8_0> : KvChunk<KvType::kQ8_0> {};
template <>
struct WeightChunk<WeightType::kQ4_0> : KvChunk<KvType::kQ4_0> {};

// Of 16 levels of IQ4_NL, eight bytes each.
KVASIR_DEVICE float iq4_nl_level(uint32_t q) {
  const uint64_t levels = q < 8 ? 0xf6eaddcfbfad9881u : 0x7159453526190d01u;
  return static_cast<float>(static_cast<int8_t>(levels >> (8 * (q % 8)) & 0xffu));
}

// Blocks of 32: f16 scale, f16 minimum, fifth bits, nibbles, as far as the type has them. Byte i
// has the nibbles of elements i and i + 16.
template <bool kHasMin, bool kHasFifth, bool kHasLevels>
struct NibbleBlockChunk {
  static constexpr uint32_t kFifthAt = kHasMin ? 4 : 2, kNibblesAt = kFifthAt + (kHasFifth ? 4 : 0);
  static constexpr uint32_t kBlockBytes = kNibblesAt + 16;
  static constexpr uint32_t kOffset = kHasMin ? 0 : kHasFifth ? 16 : 8;

  Bytes8 nibbles{};
  uint32_t scale = 0, min = 0, fifth = 0, is_high = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t n_in) {
    if (kChunk * chunk >= n_in) return;
    const uint32_t part = chunk % 4;
    const uint64_t block = row + uint64_t{kBlockBytes} * (chunk / 4);
    scale = load_at<uint16_t>(block);
    if (kHasMin) min = load_at<uint16_t>(block + 2);
    if (kHasFifth) {
      const uint32_t low = load_at<uint16_t>(block + kFifthAt);
      fifth = (low | uint32_t{load_at<uint16_t>(block + kFifthAt + 2)} << 16) >> (kChunk * part);
    }
    is_high = part / 2;
    nibbles = load_bytes8(block + kNibblesAt + uint64_t{kChunk} * (part % 2));
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(scale), least = kHasMin ? half_to_float(min) : 0.0f;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      uint32_t q = nibble_of(nibbles, i, is_high);
      if (kHasFifth) q |= (fifth >> i & 1u) << 4;
      const float step =
          kHasLevels ? iq4_nl_level(q)
                     : static_cast<float>(static_cast<int32_t>(q) - static_cast<int32_t>(kOffset));
      out[i] = unit * step + least;
    }
  }
};
template <>
struct WeightChunk<WeightType::kQ4_1> : NibbleBlockChunk<true, false, false> {};
template <>
struct WeightChunk<WeightType::kQ5_0> : NibbleBlockChunk<false, true, false> {};
template <>
struct WeightChunk<WeightType::kQ5_1> : NibbleBlockChunk<true, true, false> {};
template <>
struct WeightChunk<WeightType::kIQ4_NL> : NibbleBlockChunk<false, false, true> {};

// Scale and minimum of group g of Q4_K and Q5_K, six bits each in twelve bytes: the first four keep
// theirs in bytes 0-3 and 4-7; of the others bytes 8-11 hold the low nibbles, the top of bytes 0-3
// and 4-7 the upper pairs.
KVASIR_DEVICE void load_six_bits(uint64_t at, uint32_t g, uint32_t& scale, uint32_t& min) {
  const auto byte = [&](uint32_t i) { return uint32_t{load_at<uint8_t>(at + i)}; };
  if (g < 4) {
    scale = byte(g) & 63u;
    min = byte(g + 4) & 63u;
    return;
  }
  const uint32_t low = byte(g + 4);
  scale = (low & 15u) | byte(g - 4) >> 6 << 4;
  min = low >> 4 | byte(g) >> 6 << 4;
}

// Blocks of 256 in groups of 32: f16 d, f16 dmin, scales [12], fifth bits [32] with bit g of byte i
// that of element i of group g, nibbles [128] with groups 2 i and 2 i + 1 in the low and high
// halves of 32 bytes.
template <bool kHasFifth>
struct SixBitBlockChunk {
  static constexpr uint32_t kFifthAt = 16, kNibblesAt = kHasFifth ? 48 : 16;
  static constexpr uint32_t kBlockBytes = kNibblesAt + 128;

  Bytes8 nibbles{}, fifth{};
  uint32_t d = 0, dmin = 0, scale = 0, min = 0, group = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t n_in) {
    if (kChunk * chunk >= n_in) return;
    const uint64_t block = row + uint64_t{kBlockBytes} * (chunk / 32);
    const uint32_t first = kChunk * (chunk % 4);  // in the group
    group = chunk % 32 / 4;
    d = load_at<uint16_t>(block);
    dmin = load_at<uint16_t>(block + 2);
    load_six_bits(block + 4, group, scale, min);
    if (kHasFifth) fifth = load_bytes8(block + kFifthAt + first);
    nibbles = load_bytes8(block + kNibblesAt + group / 2 * 32 + first);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(d) * static_cast<float>(scale);
    const float least = half_to_float(dmin) * static_cast<float>(min);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      uint32_t q = nibble_of(nibbles, i, group % 2);
      if (kHasFifth) q |= (byte_of(fifth, i) >> group & 1u) << 4;
      out[i] = unit * static_cast<float>(q) - least;
    }
  }
};
template <>
struct WeightChunk<WeightType::kQ4_K> : SixBitBlockChunk<false> {};
template <>
struct WeightChunk<WeightType::kQ5_K> : SixBitBlockChunk<true> {};

// Pairs of bits of a block of 256 in groups of 16: in each half of 128 elements four planes of 32
// share the same 32 bytes, plane p in bits 2 p and 2 p + 1.
KVASIR_DEVICE uint64_t pairs_at(uint32_t group) { return group / 8 * 32 + group % 2 * 16; }
KVASIR_DEVICE uint32_t pair_of(const Bytes8& pairs, uint32_t i, uint32_t group) {
  return byte_of(pairs, i) >> (group % 8 / 2 * 2) & 3u;
}
// What the chunks of such blocks have in common: the block, the group, the first element in it.
struct PairPlace {
  uint64_t block;
  uint32_t group, first;
};
KVASIR_DEVICE PairPlace pair_place(uint64_t row, uint32_t chunk, uint32_t block_bytes) {
  return {row + uint64_t{block_bytes} * (chunk / 32), chunk % 32 / 2, kChunk * (chunk % 2)};
}

// Scales [16]: scale and minimum of a group in the low and high nibble; pairs [64]; f16 d, dmin.
template <>
struct WeightChunk<WeightType::kQ2_K> {
  Bytes8 pairs{};
  uint32_t d = 0, dmin = 0, scales = 0, group = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t n_in) {
    if (kChunk * chunk >= n_in) return;
    const PairPlace at = pair_place(row, chunk, 84);
    group = at.group;
    scales = load_at<uint8_t>(at.block + group);
    pairs = load_bytes8(at.block + 16 + pairs_at(group) + at.first);
    d = load_at<uint16_t>(at.block + 80);
    dmin = load_at<uint16_t>(at.block + 82);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(d) * static_cast<float>(scales & 15u);
    const float least = half_to_float(dmin) * static_cast<float>(scales >> 4);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      out[i] = unit * static_cast<float>(pair_of(pairs, i, group)) - least;
  }
};

// Third bits [32], bit p of byte i that of element 32 p + i; pairs [64]; scales [12], six bits
// each: 8 bytes of nibbles, 4 bytes of upper pairs; f16 d.
template <>
struct WeightChunk<WeightType::kQ3_K> {
  Bytes8 pairs{}, third{};
  uint32_t d = 0, scale = 0, group = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t n_in) {
    if (kChunk * chunk >= n_in) return;
    const PairPlace at = pair_place(row, chunk, 110);
    group = at.group;
    third = load_bytes8(at.block + group % 2 * 16 + at.first);
    pairs = load_bytes8(at.block + 32 + pairs_at(group) + at.first);
    const uint32_t nibbles = load_at<uint8_t>(at.block + 96 + group % 8);
    const uint32_t upper = load_at<uint8_t>(at.block + 104 + group % 4);
    scale = (nibbles >> (group / 8 * 4) & 15u) | (upper >> (group / 4 * 2) & 3u) << 4;
    d = load_at<uint16_t>(at.block + 108);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(d) * static_cast<float>(static_cast<int32_t>(scale) - 32);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      const int32_t low = static_cast<int32_t>(pair_of(pairs, i, group));
      const bool has_third = (byte_of(third, i) >> (group / 2) & 1u) != 0;
      out[i] = unit * static_cast<float>(low - (has_third ? 0 : 4));
    }
  }
};

// Low nibbles [128], planes 0 and 2, 1 and 3 of a half of 128 elements in the same bytes; upper
// pairs [64]; i8 scales [16]; f16 d.
template <>
struct WeightChunk<WeightType::kQ6_K> {
  Bytes8 nibbles{}, pairs{};
  uint32_t d = 0, group = 0;
  int32_t scale = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t n_in) {
    if (kChunk * chunk >= n_in) return;
    const PairPlace at = pair_place(row, chunk, 210);
    group = at.group;
    nibbles = load_bytes8(at.block + group / 8 * 64 + group % 4 * 16 + at.first);
    pairs = load_bytes8(at.block + 128 + pairs_at(group) + at.first);
    scale = static_cast<int8_t>(load_at<uint8_t>(at.block + 192 + group));
    d = load_at<uint16_t>(at.block + 208);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(d) * static_cast<float>(scale);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t q = nibble_of(nibbles, i, group % 8 < 4 ? 0 : 1) | pair_of(pairs, i, group)
                                                                            << 4;
      out[i] = unit * static_cast<float>(static_cast<int32_t>(q) - 32);
    }
  }
};

}  // namespace kvasir::cuda
