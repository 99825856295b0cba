// What a lane takes of a row of a weight matrix at once, loaded as GGUF's blocks lie and turned
// into f32: the elements whose bits share the same bytes, in chunks of eight neighbours. Block
// layouts: github.com/ggml-org/ggml, types of ggml-common.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/kv_chunk.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir::cuda {

// Eight bytes at an even address, in three loads and no branch: lanes of a warp meet every
// alignment. They are put together when they are used, since that waits for them. Reads nothing
// outside of the 4-byte words that hold them, and nothing behind them.
struct EvenBytes8 {
  uint32_t first = 0, second = 0, last = 0;

  KVASIR_DEVICE void load(uint64_t at) {
    const uint64_t words = at / 4 * 4;
    first = read_constant<uint32_t>(words);
    second = read_constant<uint32_t>(words + 4);
    last = read_constant<uint16_t>(at + 6);
  }
  // shift: 8 * (at % 4)
  KVASIR_DEVICE Bytes8 bytes(uint32_t shift) const {
    return {{funnel_right(first, second, shift), funnel_right(second, last, shift)}};
  }
};
KVASIR_DEVICE uint32_t shift_of(uint64_t at) { return static_cast<uint32_t>(at % 4) * 8; }
// Where bytes mostly begin at multiples of what is loaded.
KVASIR_DEVICE Bytes8 load_bytes8(uint64_t at) {
  if (at % sizeof(Bytes8) == 0) return read_constant<Bytes8>(at);
  EvenBytes8 even;
  even.load(at);
  return even.bytes(shift_of(at));
}
KVASIR_DEVICE Bytes16 load_bytes16(uint64_t at) {
  if (at % sizeof(Bytes16) == 0) return read_constant<Bytes16>(at);
  const Bytes8 low = load_bytes8(at), high = load_bytes8(at + 8);
  return {{low.word[0], low.word[1], high.word[0], high.word[1]}};
}

// Bits of eight bytes at once: (bytes >> shift) & mask in each, where no bit leaves its byte.
KVASIR_DEVICE Bytes8 bits_of(const Bytes8& bytes, uint32_t shift, uint32_t mask) {
  const uint32_t masks = 0x01010101u * mask;
  return {{bytes.word[0] >> shift & masks, bytes.word[1] >> shift & masks}};
}
// low | high << shift in each byte.
KVASIR_DEVICE Bytes8 join(const Bytes8& low, const Bytes8& high, uint32_t shift) {
  return {{low.word[0] | high.word[0] << shift, low.word[1] | high.word[1] << shift}};
}

// Byte i of a word, less an offset, exactly: as the last byte of the fraction of 2^23, since
// conversions of integers are several times slower than sums.
KVASIR_DEVICE float byte_to_float(uint32_t word, uint32_t i, uint32_t offset = 0) {
  const uint32_t bits = permute_bytes(word, 0x4b000000u, 0x7540u | i);
  return bits_to_float(bits) - static_cast<float>((1u << 23) + offset);
}
// unit * (byte - offset) + least; -0 is no least.
KVASIR_DEVICE void scale_bytes(const Bytes8& bytes, uint32_t offset, float unit, float least,
                               float (&out)[kChunk]) {
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    out[i] = unit * byte_to_float(bytes.word[i / 4], i % 4, offset) + least;
}

// kChunks         chunks of a piece; rows are pieces one behind the other, the last may end early
// kLanesBytes     bytes of as many pieces as a warp has lanes: whole blocks
// chunk(p, i)     which chunk of the row chunk i of piece p is: elements [8 * that, 8 * that + 8)
// load(row, p, n) piece p of the row of n elements at this address; nothing is read behind its end,
//                 a piece that begins there stays as it is. Rows of blocks begin at even addresses
// floats(i, out)  chunk i of the piece
template <WeightType kType>
struct WeightPiece;

KVASIR_DEVICE void read_chunk(uint64_t at, Bytes16& bits) { bits = read_constant<Bytes16>(at); }
KVASIR_DEVICE void read_chunk(uint64_t at, Bytes16 (&bits)[2]) {
  bits[0] = read_constant<Bytes16>(at);
  bits[1] = read_constant<Bytes16>(at + sizeof(Bytes16));
}
// Pieces that are a chunk of elements one by one.
template <KvType kType, uint32_t kElementBytes>
struct PlainPiece {
  static constexpr uint32_t kChunks = 1, kLanesBytes = kWarpLanes * kChunk * kElementBytes;
  KvChunk<kType> raw;

  KVASIR_DEVICE static uint32_t chunk(uint32_t piece, uint32_t) { return piece; }
  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const uint64_t at = row + uint64_t{kChunk} * kElementBytes * piece;
    if (at % sizeof(Bytes16) == 0 && kChunk * (piece + 1) <= n_in) {
      read_chunk(at, raw.bits);
    } else if (kChunk * piece < n_in) {
      raw = {};
      raw.load(row, piece, n_in);
    }
  }
  KVASIR_DEVICE void floats(uint32_t, float (&out)[kChunk]) const { raw.floats(out); }
};
template <>
struct WeightPiece<WeightType::kF32> : PlainPiece<KvType::kF32, 4> {};
template <>
struct WeightPiece<WeightType::kF16> : PlainPiece<KvType::kF16, 2> {};
template <>
struct WeightPiece<WeightType::kBF16> : PlainPiece<KvType::kBF16, 2> {};

// Blocks of 32: f16 scale, i8 steps.
template <>
struct WeightPiece<WeightType::kQ8_0> {
  static constexpr uint32_t kChunks = 1, kLanesBytes = kWarpLanes / 4 * 34;
  EvenBytes8 steps;
  uint32_t scale = 0, shift = 0;

  KVASIR_DEVICE static uint32_t chunk(uint32_t piece, uint32_t) { return piece; }
  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const uint64_t block = row + uint64_t{34} * (piece / 4);
    shift = shift_of(block + 2);
    if (kChunk * piece >= n_in) return;
    scale = read_constant<uint16_t>(block);
    steps.load(block + 2 + kChunk * (piece % 4));
  }
  KVASIR_DEVICE void floats(uint32_t, float (&out)[kChunk]) const {
    constexpr uint32_t kSigns = 0x80808080u;  // two's complement, less 128
    const Bytes8 raw = steps.bytes(shift);
    scale_bytes({{raw.word[0] ^ kSigns, raw.word[1] ^ kSigns}}, 128, half_to_float(scale), -0.0f,
                out);
  }
};

// Of 16 levels of IQ4_NL, eight bytes each.
KVASIR_DEVICE float iq4_nl_level(uint32_t q) {
  const uint64_t levels = q < 8 ? 0xf6eaddcfbfad9881u : 0x7159453526190d01u;
  return static_cast<float>(static_cast<int8_t>(levels >> (8 * (q % 8)) & 0xffu));
}
// Bit i of eight in the lowest bit of byte i.
KVASIR_DEVICE Bytes8 spread_bits(uint32_t bits) {
  Bytes8 out{};
  KVASIR_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i) out.word[i / 4] |= (bits >> i & 1u) << (8 * (i % 4));
  return out;
}

// Blocks of 32: f16 scale, f16 minimum, fifth bits, nibbles, as far as the type has them. Byte i
// has the nibbles of elements i and i + 16; eight bytes are a piece.
template <bool kHasMin, bool kHasFifth, bool kHasLevels>
struct NibbleBlockPiece {
  static constexpr uint32_t kChunks = 2;
  static constexpr uint32_t kFifthAt = kHasMin ? 4 : 2, kNibblesAt = kFifthAt + (kHasFifth ? 4 : 0);
  static constexpr uint32_t kBlockBytes = kNibblesAt + 16;
  static constexpr uint32_t kLanesBytes = kWarpLanes / 2 * kBlockBytes;
  static constexpr uint32_t kOffset = kHasMin ? 0 : kHasFifth ? 16 : 8;

  EvenBytes8 nibbles;
  uint32_t scale = 0, min = 0, fifth[2]{}, is_second = 0, shift = 0;

  KVASIR_DEVICE static uint32_t chunk(uint32_t piece, uint32_t i) {
    return piece / 2 * 4 + 2 * i + piece % 2;
  }
  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const uint64_t block = row + uint64_t{kBlockBytes} * (piece / 2);
    const uint32_t first = kChunk * (piece % 2);
    is_second = piece % 2;
    shift = shift_of(block + kNibblesAt);
    if (kChunks * kChunk * piece >= n_in) return;
    scale = read_constant<uint16_t>(block);
    if (kHasMin) min = read_constant<uint16_t>(block + 2);
    if (kHasFifth) {
      fifth[0] = read_constant<uint16_t>(block + kFifthAt);
      fifth[1] = read_constant<uint16_t>(block + kFifthAt + 2);
    }
    nibbles.load(block + kNibblesAt + first);
  }
  KVASIR_DEVICE void floats(uint32_t i, float (&out)[kChunk]) const {
    const float unit = half_to_float(scale), least = kHasMin ? half_to_float(min) : -0.0f;
    Bytes8 steps = bits_of(nibbles.bytes(shift), 4 * i, 15);
    if (kHasFifth) steps = join(steps, spread_bits(fifth[i] >> (kChunk * is_second) & 0xffu), 4);
    if constexpr (kHasLevels) {
      KVASIR_UNROLL
      for (uint32_t e = 0; e < kChunk; ++e)
        out[e] = unit * iq4_nl_level(steps.word[e / 4] >> (8 * (e % 4)) & 15u);
    } else {
      scale_bytes(steps, kOffset, unit, least, out);
    }
  }
};
template <>
struct WeightPiece<WeightType::kQ4_0> : NibbleBlockPiece<false, false, false> {};
template <>
struct WeightPiece<WeightType::kQ4_1> : NibbleBlockPiece<true, false, false> {};
template <>
struct WeightPiece<WeightType::kQ5_0> : NibbleBlockPiece<false, true, false> {};
template <>
struct WeightPiece<WeightType::kQ5_1> : NibbleBlockPiece<true, true, false> {};
template <>
struct WeightPiece<WeightType::kIQ4_NL> : NibbleBlockPiece<false, false, true> {};

// Scales and minima of groups 2 j and 2 j + 1 of Q4_K and Q5_K in the two lower bytes. Six bits
// each in twelve bytes: the first four groups keep theirs in bytes 0-3 and 4-7; of the others bytes
// 8-11 hold the low nibbles, the top of bytes 0-3 and 4-7 the upper pairs.
KVASIR_DEVICE void six_bit_pairs(const Bytes16& head, uint32_t j, uint32_t& scales,
                                 uint32_t& mins) {
  const uint32_t shift = 16 * (j % 2);
  const uint32_t a = head.word[1] >> shift, b = head.word[2] >> shift, c = head.word[3] >> shift;
  scales = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
  mins = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
}

// Blocks of 256 in groups of 32: f16 d, f16 dmin, scales [12], fifth bits [32] with bit g of byte i
// that of element i of group g, nibbles [128] with groups 2 j and 2 j + 1 in the low and high
// halves of 32 bytes. Two times eight of these bytes are a piece, 16 apart: scales are worked out
// for 32 elements, and neighbouring lanes have neighbouring ones.
template <bool kHasFifth>
struct SixBitBlockPiece {
  static constexpr uint32_t kChunks = 4;
  static constexpr uint32_t kFifthAt = 16, kNibblesAt = kHasFifth ? 48 : 16;
  static constexpr uint32_t kBlockBytes = kNibblesAt + 128;
  static constexpr uint32_t kLanesBytes = kWarpLanes / 8 * kBlockBytes;

  Bytes16 head{};
  Bytes8 nibbles[2]{}, fifth[2]{};
  uint32_t pair = 0;

  KVASIR_DEVICE static uint32_t chunk(uint32_t piece, uint32_t i) {
    return piece / 2 * 8 + 4 * (i % 2) + 2 * (i / 2) + piece % 2;
  }
  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const uint64_t block = row + uint64_t{kBlockBytes} * (piece / 8);
    const uint32_t first = kChunk * (piece % 2);  // in the group
    pair = piece % 8 / 2;
    if (kChunks * kChunk * piece >= n_in) return;
    head = load_bytes16(block);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      if (kHasFifth) fifth[i] = load_bytes8(block + kFifthAt + first + 16 * i);
      nibbles[i] = load_bytes8(block + kNibblesAt + 32 * pair + first + 16 * i);
    }
  }
  KVASIR_DEVICE void floats(uint32_t i, float (&out)[kChunk]) const {
    const uint32_t is_high = i % 2;
    uint32_t scales, mins;
    six_bit_pairs(head, pair, scales, mins);
    const float unit = half_to_float(head.word[0] & 0xffffu) * byte_to_float(scales, is_high);
    const float least = half_to_float(head.word[0] >> 16) * byte_to_float(mins, is_high);
    Bytes8 steps = bits_of(nibbles[i / 2], 4 * is_high, 15);
    if (kHasFifth) steps = join(steps, bits_of(fifth[i / 2], 2 * pair + is_high, 1), 4);
    scale_bytes(steps, 0, unit, -least, out);
  }
};
template <>
struct WeightPiece<WeightType::kQ4_K> : SixBitBlockPiece<false> {};
template <>
struct WeightPiece<WeightType::kQ5_K> : SixBitBlockPiece<true> {};

// Blocks of 256 in groups of 16 with pairs of bits: in each half of 128 elements four planes of 32
// share the same 32 bytes, plane i in bits 2 i and 2 i + 1. Eight of these bytes are a piece, and
// each plane has a chunk of it.
struct PlanePlace {
  uint64_t block;
  uint32_t half, first;  // of two, in the plane
  KVASIR_DEVICE PlanePlace(uint64_t row, uint32_t piece, uint32_t block_bytes)
      : block(row + uint64_t{block_bytes} * (piece / 8)),
        half(piece % 8 / 4),
        first(kChunk * (piece % 4)) {}
};
template <uint32_t kBlockBytes>
struct PlanesPiece {
  static constexpr uint32_t kChunks = 4, kLanesBytes = kWarpLanes / 8 * kBlockBytes;
  KVASIR_DEVICE static uint32_t chunk(uint32_t piece, uint32_t i) {
    return piece / 4 * 16 + 4 * i + piece % 4;
  }
};
// Eight bytes of which every second one, from the first or the second on, is that of a plane.
KVASIR_DEVICE uint32_t byte_of_plane(const Bytes8& bytes, uint32_t i, uint32_t second) {
  return bytes.word[i / 2] >> (16 * (i % 2) + 8 * second) & 0xffu;
}

// Scales [16]: scale and minimum of a group in the low and high nibble; pairs [64]; f16 d, dmin.
template <>
struct WeightPiece<WeightType::kQ2_K> : PlanesPiece<84> {
  EvenBytes8 pairs, scales;
  uint32_t d = 0, dmin = 0, second = 0, shift = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const PlanePlace at(row, piece, 84);
    second = at.first / 16;
    shift = shift_of(at.block);
    if (kChunks * kChunk * piece >= n_in) return;
    scales.load(at.block + 8 * at.half);
    pairs.load(at.block + 16 + 32 * at.half + at.first);
    d = read_constant<uint16_t>(at.block + 80);
    dmin = read_constant<uint16_t>(at.block + 82);
  }
  KVASIR_DEVICE void floats(uint32_t i, float (&out)[kChunk]) const {
    const uint32_t both = byte_of_plane(scales.bytes(shift), i, second);
    const float unit = half_to_float(d) * byte_to_float(both & 15u, 0);
    const float least = half_to_float(dmin) * byte_to_float(both >> 4, 0);
    scale_bytes(bits_of(pairs.bytes(shift), 2 * i, 3), 0, unit, -least, out);
  }
};

// Third bits [32], bit p of byte i that of element 32 p + i; pairs [64]; scales [12], six bits
// each: 8 bytes of nibbles, 4 bytes of upper pairs; f16 d.
template <>
struct WeightPiece<WeightType::kQ3_K> : PlanesPiece<110> {
  EvenBytes8 pairs, third, nibbles;
  uint32_t upper[2]{}, d = 0, half = 0, second = 0, shift = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const PlanePlace at(row, piece, 110);
    half = at.half;
    second = at.first / 16;
    shift = shift_of(at.block);
    if (kChunks * kChunk * piece >= n_in) return;
    third.load(at.block + at.first);
    pairs.load(at.block + 32 + 32 * half + at.first);
    nibbles.load(at.block + 96);
    upper[0] = read_constant<uint16_t>(at.block + 104);
    upper[1] = read_constant<uint16_t>(at.block + 106);
    d = read_constant<uint16_t>(at.block + 108);
  }
  KVASIR_DEVICE void floats(uint32_t i, float (&out)[kChunk]) const {
    const uint32_t group = 8 * half + 2 * i + second;
    const uint32_t low = byte_of_plane(nibbles.bytes(shift), i, second) >> (4 * half) & 15u;
    const uint32_t high = (upper[0] | upper[1] << 16) >> (8 * (group % 4) + 2 * (group / 4)) & 3u;
    const float unit = half_to_float(d) * byte_to_float(low | high << 4, 0, 32);
    const Bytes8 steps = join(bits_of(pairs.bytes(shift), 2 * i, 3),
                              bits_of(third.bytes(shift), 4 * half + i, 1), 2);
    scale_bytes(steps, 4, unit, -0.0f, out);
  }
};

// Low nibbles [128], planes 0 and 2, 1 and 3 of a half of 128 elements in the same bytes; upper
// pairs [64]; i8 scales [16]; f16 d.
template <>
struct WeightPiece<WeightType::kQ6_K> : PlanesPiece<210> {
  EvenBytes8 nibbles[2], pairs, scales;
  uint32_t d = 0, second = 0, shift = 0;

  KVASIR_DEVICE void load(uint64_t row, uint32_t piece, uint32_t n_in) {
    const PlanePlace at(row, piece, 210);
    second = at.first / 16;
    shift = shift_of(at.block);
    if (kChunks * kChunk * piece >= n_in) return;
    nibbles[0].load(at.block + 64 * at.half + at.first);
    nibbles[1].load(at.block + 64 * at.half + 32 + at.first);
    pairs.load(at.block + 128 + 32 * at.half + at.first);
    scales.load(at.block + 192 + 8 * at.half);
    d = read_constant<uint16_t>(at.block + 208);
  }
  KVASIR_DEVICE void floats(uint32_t i, float (&out)[kChunk]) const {
    const float scale =
        byte_to_float(byte_of_plane(scales.bytes(shift), i, second) ^ 0x80u, 0, 128);
    const Bytes8 low = bits_of(nibbles[i % 2].bytes(shift), i < 2 ? 0 : 4, 15);
    scale_bytes(join(low, bits_of(pairs.bytes(shift), 2 * i, 3), 4), 32, half_to_float(d) * scale,
                -0.0f, out);
  }
};

}  // namespace kvasir::cuda
