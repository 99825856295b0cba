// Arithmetic of representative records: vectors of head_dim elements in f32 or f16, built from the
// keys of a block and multiplied with queries. Plain loops.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/types.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::sdk {

enum class Round { kNearest, kUp, kDown };

inline float from_f16(uint16_t h) {
  const uint32_t magnitude = (h & 0x7fffu) << 13;
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  if ((h & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
  return std::bit_cast<float>(bits | (h & 0x8000u) << 16);
}

// To nearest even; beyond the range of f16 the largest finite value, so that no product with a
// record is infinite. NaN stays NaN.
inline uint16_t nearest_f16(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 16 & 0x8000u;
  const float magnitude = std::fabs(x);
  uint32_t h;
  if (std::isnan(x)) {
    h = 0x7e00u;
  } else if (magnitude >= 65504.0f) {
    h = 0x7bffu;
  } else if (magnitude < 0x1p-14f) {
    h = static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f));
  } else {
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    h = (bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | h);
}

// kUp: the smallest f16 >= x, kDown: the largest <= x, within the finite range.
inline uint16_t to_f16(float x, Round round) {
  const uint16_t h = nearest_f16(x);
  const float y = from_f16(h);
  if (std::fabs(x) >= 65504.0f) return h;
  if (round == Round::kUp && y < x) {
    return static_cast<uint16_t>(h & 0x8000u ? h - 1 : h + 1);  // -0 < x cannot be: 0 is nearest
  }
  if (round == Round::kDown && y > x) return static_cast<uint16_t>(h & 0x8000u ? h + 1 : h - 1);
  return h;
}

inline float load_element(const std::byte* row, uint32_t dtype, uint64_t i) {
  if (dtype == KVASIR_DTYPE_F32) {
    float x;
    std::memcpy(&x, row + i * sizeof x, sizeof x);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, row + i * sizeof h, sizeof h);
  return dtype == KVASIR_DTYPE_F16 ? from_f16(h) : std::bit_cast<float>(uint32_t{h} << 16);
}

inline void store_element(std::byte* vector, uint32_t dtype, uint64_t i, float x, Round round) {
  if (dtype == KVASIR_DTYPE_F32) {
    std::memcpy(vector + i * sizeof x, &x, sizeof x);
  } else {
    const uint16_t h = to_f16(x, round);
    std::memcpy(vector + i * sizeof h, &h, sizeof h);
  }
}

}  // namespace kvasir::sdk
