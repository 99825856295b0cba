// Blocks of 32 elements that share one f16 scale `d`, and a minimum `m` where the type has it. Each
// struct is its bytes on disk, in that order.
// decode(y) writes kElements numbers. encode(x) reads as many, none above kMostOfBlock, into a
// block whose bytes are zero.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::gguf {

// Nibbles: element i in the low one of byte i, i + 16 in the high one. Fifth bits: that of element
// i is bit i of qh.

struct Q4_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;  // y = d (q - 8)
  uint8_t qs[16];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q4_1 {
  static constexpr size_t kElements = 32;
  uint16_t d, m;  // y = d q + m
  uint8_t qs[16];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q5_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;  // y = d (q - 16)
  uint8_t qh[4];
  uint8_t qs[16];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q5_1 {
  static constexpr size_t kElements = 32;
  uint16_t d, m;  // y = d q + m
  uint8_t qh[4];
  uint8_t qs[16];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q8_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;  // y = d q
  int8_t qs[32];
  void decode(float* y) const;
  void encode(const float* x);
};

struct IQ4_NL {
  static constexpr size_t kElements = 32;
  // Sixteen levels, denser around zero, in place of evenly spaced ones.
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
  uint16_t d;  // y = d kLevels[q]
  uint8_t qs[16];
  void decode(float* y) const;
  void encode(const float* x);
};

}  // namespace kvasir::gguf
