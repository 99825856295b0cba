// Eight neighbouring elements of a K or V row, loaded as they are stored and turned into f32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/device.h"

namespace kvasir::cuda {

inline constexpr uint32_t kChunk = 8;  // elements per lane: 16 bytes of a 2-byte type

struct alignas(8) Bytes8 {
  uint32_t word[2];
};

template <class V>
KVASIR_DEVICE V load_at(uint64_t address) {
  return read_as<V>(global<const V>(address));
}

// e4m3: bias 7, 0x7f and 0xff are NaN, no infinities.
KVASIR_DEVICE float fp8_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, exponent = bits >> 3 & 15u, fraction = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return bits_to_float(0x7fc00000u);
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * (1.0f / 512.0f);
    return sign ? -value : value;
  }
  return bits_to_float(sign | (exponent + 120u) << 23 | fraction << 20);
}

// load(): elements [8 * chunk, 8 * chunk + 8) of the row of `dim` elements at this address; what
// lies behind its end is 0 and not read. Addresses are as aligned as one element; 16 bytes at once
// are read where they are aligned to it.
template <KvType kType>
struct KvChunk;

template <bool kIsBFloat>
struct HalfChunk {
  Bytes16 bits{};

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t dim) {
    const uint64_t at = row + uint64_t{2} * kChunk * chunk;
    const uint32_t begin = kChunk * chunk;
    if (at % sizeof(Bytes16) == 0 && begin + kChunk <= dim) {
      bits = load_at<Bytes16>(at);
      return;
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      if (begin + i < dim)
        bits.word[i / 2] |= uint32_t{load_at<uint16_t>(at + uint64_t{2} * i)} << (16 * (i % 2));
    }
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t word = bits.word[i / 2];
      const uint32_t half = i % 2 ? word >> 16 : word & 0xffffu;
      out[i] = kIsBFloat ? bits_to_float(half << 16) : half_to_float(half);
    }
  }
};
template <>
struct KvChunk<KvType::kF16> : HalfChunk<false> {};
template <>
struct KvChunk<KvType::kBF16> : HalfChunk<true> {};

template <>
struct KvChunk<KvType::kF32> {
  Bytes16 bits[2]{};

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t dim) {
    const uint64_t at = row + uint64_t{4} * kChunk * chunk;
    const uint32_t begin = kChunk * chunk;
    if (at % sizeof(Bytes16) == 0 && begin + kChunk <= dim) {
      bits[0] = load_at<Bytes16>(at);
      bits[1] = load_at<Bytes16>(at + sizeof(Bytes16));
      return;
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      if (begin + i < dim) bits[i / 4].word[i % 4] = load_at<uint32_t>(at + uint64_t{4} * i);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) out[i] = bits_to_float(bits[i / 4].word[i % 4]);
  }
};

// Groups of 32 begin at any even address: two bytes at a time.
template <bool kIsNibble>
struct GroupChunk {
  uint32_t steps[kChunk / 2]{};
  uint32_t scale = 0;
  uint32_t is_high = 0;  // nibbles: which half of each byte

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t dim) {
    if (kChunk * chunk >= dim) return;
    const uint32_t part = chunk % 4;  // of the group
    const uint64_t group = row + uint64_t{kIsNibble ? 18u : 34u} * (chunk / 4);
    const uint64_t at = group + 2 + uint64_t{kChunk} * (kIsNibble ? part % 2 : part);
    scale = load_at<uint16_t>(group);
    is_high = part / 2;
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk / 2; ++i) steps[i] = load_at<uint16_t>(at + uint64_t{2} * i);
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    const float unit = half_to_float(scale);
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t byte = steps[i / 2] >> (8 * (i % 2)) & 0xffu;
      const int32_t nibble = static_cast<int32_t>(byte >> (is_high ? 4 : 0) & 15u) - 8;
      out[i] = unit * static_cast<float>(kIsNibble ? nibble : static_cast<int8_t>(byte));
    }
  }
};
template <>
struct KvChunk<KvType::kQ8_0> : GroupChunk<false> {};
template <>
struct KvChunk<KvType::kQ4_0> : GroupChunk<true> {};

template <>
struct KvChunk<KvType::kFp8> {
  Bytes8 bits{};

  KVASIR_DEVICE void load(uint64_t row, uint32_t chunk, uint32_t dim) {
    const uint32_t begin = kChunk * chunk;
    if ((row + begin) % sizeof(Bytes8) == 0 && begin + kChunk <= dim) {
      bits = load_at<Bytes8>(row + begin);
      return;
    }
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      if (begin + i < dim)
        bits.word[i / 4] |= uint32_t{load_at<uint8_t>(row + begin + i)} << (8 * (i % 4));
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      out[i] = fp8_to_float(bits.word[i / 4] >> (8 * (i % 4)) & 0xffu);
  }
};

template <KvType kType>
KVASIR_DEVICE void load_floats(uint64_t row, uint32_t chunk, uint32_t dim, float (&out)[kChunk]) {
  KvChunk<kType> raw;
  raw.load(row, chunk, dim);
  raw.floats(out);
}

// A type per row: turned into f32 at once, since registers have one shape.
template <>
struct KvChunk<KvType::kMixed> {
  float values[kChunk]{};

  KVASIR_DEVICE void load(KvType type, uint64_t row, uint32_t chunk, uint32_t dim) {
    switch (type) {
      case KvType::kF32:
        return load_floats<KvType::kF32>(row, chunk, dim, values);
      case KvType::kF16:
        return load_floats<KvType::kF16>(row, chunk, dim, values);
      case KvType::kBF16:
        return load_floats<KvType::kBF16>(row, chunk, dim, values);
      case KvType::kQ8_0:
        return load_floats<KvType::kQ8_0>(row, chunk, dim, values);
      case KvType::kQ4_0:
        return load_floats<KvType::kQ4_0>(row, chunk, dim, values);
      case KvType::kFp8:
        return load_floats<KvType::kFp8>(row, chunk, dim, values);
      case KvType::kMixed:
        return;
    }
  }
  KVASIR_DEVICE void floats(float (&out)[kChunk]) const {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) out[i] = values[i];
  }
};

}  // namespace kvasir::cuda
