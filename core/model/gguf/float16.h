// IEEE half and bfloat16 as bit patterns, to and from f32, rounding to nearest even.
// Plain expressions without branches on data, so that the compiler vectorises loops over them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace kvasir {

// Halves below 2^-14 go through a subtraction of normal numbers: right also when the CPU is set to
// treat denormals as zero.
inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7FFFu) << 13;
  const uint32_t rebias = 112u << 23;
  const uint32_t normal = magnitude + rebias;
  const uint32_t special = normal + rebias;  // exponent 31 becomes 255: infinity, NaN
  const float min_normal = std::bit_cast<float>(113u << 23);  // 2^-14
  const float small = std::bit_cast<float>(magnitude + (113u << 23)) - min_normal;
  uint32_t bits = magnitude < 0x00800000u ? std::bit_cast<uint32_t>(small) : normal;
  bits = magnitude >= 0x0F800000u ? special : bits;
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = all & 0x7FFFFFFFu;
  // Below 2^-14 the addition of 0.5 aligns the mantissa to steps of 2^-24 and rounds it.
  const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t small = std::bit_cast<uint32_t>(aligned) - 0x3F000000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t bits = magnitude < 0x38800000u ? small : normal;
  bits = magnitude >= 0x477FF000u ? 0x7C00u : bits;  // 65520 and above round to infinity
  bits = magnitude > 0x7F800000u ? 0x7E00u : bits;   // NaN
  return static_cast<uint16_t>((all >> 16 & 0x8000u) | bits);
}

inline float bf16_to_f32(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(is_nan ? (bits >> 16 | 0x40u) : rounded);
}

}  // namespace kvasir
