// Element types of stored K and V rows and of representative records.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

// The numbers are those of the C ABI (KVASIR_DTYPE_*), which checks them where it meets this.
enum class ElementType : uint32_t {
  kF32 = 1,
  kF16 = 2,   // IEEE 754 binary16
  kBF16 = 3,  // the upper half of a binary32
  kQ8_0 = 4,  // groups of 32 along the row: Q8Group
  kQ4_0 = 5,  // groups of 32 along the row: Q4Group
  kFp8E4M3 = 6,
};

inline constexpr size_t kGroupElements = 32;

// The groups of GGUF's types of the same names. Scales are binary16.
struct Q8Group {
  static constexpr bool kIsGroup = true;
  uint16_t scale;
  int8_t q[kGroupElements];  // x[i] = scale * q[i]
};
struct Q4Group {
  static constexpr bool kIsGroup = true;
  uint16_t scale;
  uint8_t q[kGroupElements / 2];  // x[i], x[16 + i] = scale * (low, high nibble of q[i] - 8)
};
static_assert(sizeof(Q8Group) == 34 && sizeof(Q4Group) == 18);

// OCP FP8 E4M3 (Micikevicius et al. 2022, arXiv:2209.05433): sign, 4 bits of exponent with bias 7,
// 3 of fraction; subnormal below 2^-6, at most 448, no infinity. 0x7f and 0xff are NaN.
struct Fp8E4M3 {
  uint8_t bits;
};
static_assert(sizeof(Fp8E4M3) == 1);

// Elements that cannot be stored without their neighbours: rows are multiples of it.
constexpr size_t group_elements(ElementType type) {
  return type == ElementType::kQ8_0 || type == ElementType::kQ4_0 ? kGroupElements : 1;
}

// Bytes of a row of n elements, a multiple of group_elements(type).
constexpr size_t row_bytes(ElementType type, size_t n) {
  switch (type) {
    case ElementType::kF32:
      return 4 * n;
    case ElementType::kF16:
    case ElementType::kBF16:
      return 2 * n;
    case ElementType::kQ8_0:
      return n / kGroupElements * sizeof(Q8Group);
    case ElementType::kQ4_0:
      return n / kGroupElements * sizeof(Q4Group);
    case ElementType::kFp8E4M3:
      return n;
  }
  return 0;
}

}  // namespace kvasir::kernels
