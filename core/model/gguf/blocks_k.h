// Blocks of 256 elements in groups of 16 or 32, each with a small integer scale (and minimum)
// beside the f16 scale of the block. Each struct is its bytes on disk, in that order.
// decode(y) writes kElements numbers. encode(x) reads as many, none above kMostOfBlock, into a
// block whose bytes are zero.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::gguf {

struct Q2_K {
  static constexpr size_t kElements = 256;
  uint8_t scales[16];  // per group of 16: scale in the low nibble, minimum in the high one
  uint8_t qs[64];      // pairs, see two_bits()
  uint16_t d, dmin;
  void decode(float* y) const;
};

struct Q3_K {
  static constexpr size_t kElements = 256;
  uint8_t hmask[32];  // bit p of byte i: third bit of element 32 p + i
  uint8_t qs[64];     // low two bits, as in Q2_K
  uint8_t
      scales[12];  // 6 bits per group of 16: 8 bytes of nibbles, then 4 bytes of upper bit pairs
  uint16_t d;
  void decode(float* y) const;
  int group_scale(size_t group) const;
};

// Scale and minimum of the eight groups of 32 of Q4_K and Q5_K, six bits each. The first four
// scales and minima keep their low six bits of bytes 0-3 and 4-7; the others have their low nibbles
// in bytes 8-11 and their upper pairs in the top of bytes 0-3 and 4-7.
struct SixBits {
  uint8_t bytes[12];
  struct Pair {
    int scale, min;
  };
  Pair get(size_t group) const;
  void set(size_t group, Pair pair);  // once per group of a zeroed SixBits
};

// Groups 2g and 2g + 1 of 32 elements are the low and high nibbles of bytes 32 g ... of qs.
struct Q4_K {
  static constexpr size_t kElements = 256;
  uint16_t d, dmin;  // y = d scale q - dmin min
  SixBits scales;
  uint8_t qs[128];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q5_K {
  static constexpr size_t kElements = 256;
  uint16_t d, dmin;  // y = d scale q - dmin min
  SixBits scales;
  uint8_t qh[32];  // bit g of byte i: fifth bit of element i of group g
  uint8_t qs[128];
  void decode(float* y) const;
  void encode(const float* x);
};

struct Q6_K {
  static constexpr size_t kElements = 256;
  uint8_t ql[128];    // low nibbles: planes 0 and 2 of a half share 32 bytes, then 1 and 3
  uint8_t qh[64];     // upper pairs, as the pairs of Q2_K
  int8_t scales[16];  // per group of 16
  uint16_t d;         // y = d scale (q - 32)
  void decode(float* y) const;
  void encode(const float* x);
};

}  // namespace kvasir::gguf
