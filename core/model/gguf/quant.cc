// Blocks of the ggml tensor types to f32, and f32 to the types that are written.
// Each block type is a struct of its bytes on disk; every array below is in that order. Elements of
// a block share one f16 scale `d`; the K types have 256 elements in groups of 16 or 32 with a small
// integer scale each. Block layouts: github.com/ggml-org/ggml, types of ggml-common.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/model/gguf/float16.h"

namespace kvasir {
namespace {

// Blocks of 32 with a nibble per element: element i in the low one of byte i, i + 16 in the high
// one. value(nibble, i) is element i.
template <class Value>
void decode_nibbles(const uint8_t* qs, float* y, const Value& value) {
  for (size_t i = 0; i < 16; ++i) {
    y[i] = value(qs[i] & 15, i);
    y[i + 16] = value(qs[i] >> 4, i + 16);
  }
}

struct Q4_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;
  uint8_t qs[16];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(q - 8); });
  }
  // The extreme value, with its sign, becomes -8, the end of the range that has one more step.
  void encode(const float* x) {
    float extreme = 0.0f;
    for (size_t i = 0; i < kElements; ++i)
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    const float scale = extreme / -8.0f;
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    d = f32_to_f16(scale);
    const auto step = [&](float value) {
      return static_cast<uint8_t>(std::clamp(value * inverse + 8.5f, 0.0f, 15.0f));
    };
    for (size_t i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>(step(x[i]) | step(x[i + 16]) << 4);
  }
};

struct Q4_1 {
  static constexpr size_t kElements = 32;
  uint16_t d, m;  // y = d q + m
  uint8_t qs[16];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    const float min = f16_to_f32(m);
    decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(q) + min; });
  }
};

// Q5_0 and Q5_1: the fifth bit of element i is bit i of qh.
struct FifthBits {
  uint32_t bits;
  explicit FifthBits(const uint8_t* qh) { std::memcpy(&bits, qh, sizeof bits); }
  int operator()(size_t i) const { return static_cast<int>(bits >> i & 1) << 4; }
};

struct Q5_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    const FifthBits fifth(qh);
    decode_nibbles(
        qs, y, [&](int q, size_t i) { return scale * static_cast<float>((q | fifth(i)) - 16); });
  }
};

struct Q5_1 {
  static constexpr size_t kElements = 32;
  uint16_t d, m;  // y = d q + m
  uint8_t qh[4];
  uint8_t qs[16];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    const float min = f16_to_f32(m);
    const FifthBits fifth(qh);
    decode_nibbles(qs, y,
                   [&](int q, size_t i) { return scale * static_cast<float>(q | fifth(i)) + min; });
  }
};

struct Q8_0 {
  static constexpr size_t kElements = 32;
  uint16_t d;
  int8_t qs[32];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    for (size_t i = 0; i < kElements; ++i) y[i] = scale * static_cast<float>(qs[i]);
  }
  void encode(const float* x) {
    float largest = 0.0f;
    for (size_t i = 0; i < kElements; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127.0f;
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    d = f32_to_f16(scale);
    for (size_t i = 0; i < kElements; ++i)
      qs[i] = static_cast<int8_t>(std::clamp(std::round(x[i] * inverse), -127.0f, 127.0f));
  }
};

struct IQ4_NL {
  static constexpr size_t kElements = 32;
  // Sixteen levels, denser around zero, in place of evenly spaced ones.
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
  uint16_t d;
  uint8_t qs[16];

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(kLevels[q]); });
  }
};

// Two bits per element: groups of 16, in each half of 128 elements four planes of 32 elements share
// the same 32 bytes, plane p in bits 2p and 2p + 1. The low pairs of Q3_K and the upper ones of
// Q6_K lie the same way.
int two_bits(const uint8_t* qs, size_t group, size_t i) {
  return qs[group / 8 * 32 + group % 2 * 16 + i] >> (group % 8 / 2 * 2) & 3;
}

struct Q2_K {
  static constexpr size_t kElements = 256;
  uint8_t scales[16];  // per group: scale in the low nibble, minimum in the high one
  uint8_t qs[64];
  uint16_t d, dmin;

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    const float min = f16_to_f32(dmin);
    for (size_t group = 0; group < 16; ++group) {
      const float group_scale = scale * static_cast<float>(scales[group] & 15);
      const float group_min = min * static_cast<float>(scales[group] >> 4);
      for (size_t i = 0; i < 16; ++i)
        y[group * 16 + i] = group_scale * static_cast<float>(two_bits(qs, group, i)) - group_min;
    }
  }
};

struct Q3_K {
  static constexpr size_t kElements = 256;
  uint8_t hmask[32];   // bit p of byte i: third bit of element 32 p + i
  uint8_t qs[64];      // low two bits, as in Q2_K
  uint8_t scales[12];  // 6 bits per group: 8 bytes of nibbles, then 4 bytes of upper bit pairs
  uint16_t d;

  int group_scale(size_t group) const {
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    return (low | high << 4) - 32;
  }
  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    for (size_t group = 0; group < 16; ++group) {
      const float by = scale * static_cast<float>(group_scale(group));
      const uint8_t* third = hmask + group % 2 * 16;
      for (size_t i = 0; i < 16; ++i)
        y[group * 16 + i] =
            by * static_cast<float>(two_bits(qs, group, i) - (third[i] >> group / 2 & 1 ? 0 : 4));
    }
  }
};

// Scale and minimum of a group of 32, six bits each, of Q4_K and Q5_K. The first four scales and
// minima keep their low six bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes
// 8-11 and their upper pairs in the top of bytes 0-3 and 4-7.
struct SixBits {
  float scale, min;
};
SixBits six_bits(const uint8_t* packed, size_t group) {
  int scale, min;
  if (group < 4) {
    scale = packed[group] & 63;
    min = packed[group + 4] & 63;
  } else {
    scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
    min = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// Groups 2g and 2g + 1 of 32 elements are the low and high nibbles of bytes 32 g … of qs.
// value(nibble, group, i): the quantised element i of a group.
template <class Block, class Value>
void decode_groups(const Block& block, float* y, const Value& value) {
  const float scale = f16_to_f32(block.d);
  const float min = f16_to_f32(block.dmin);
  for (size_t group = 0; group < 8; ++group) {
    const SixBits by = six_bits(block.scales, group);
    const float group_scale = scale * by.scale;
    const float group_min = min * by.min;
    const uint8_t* q = block.qs + group / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      const int nibble = group % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      y[group * 32 + i] = group_scale * static_cast<float>(value(nibble, group, i)) - group_min;
    }
  }
}

struct Q4_K {
  static constexpr size_t kElements = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];

  void decode(float* y) const {
    decode_groups(*this, y, [](int q, size_t, size_t) { return q; });
  }
};

struct Q5_K {
  static constexpr size_t kElements = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // bit g of byte i: fifth bit of element i of group g
  uint8_t qs[128];

  void decode(float* y) const {
    decode_groups(*this, y,
                  [&](int q, size_t group, size_t i) { return q | (qh[i] >> group & 1) << 4; });
  }
};

struct Q6_K {
  static constexpr size_t kElements = 256;
  uint8_t ql[128];    // low nibbles: planes 0 and 2 of a half share 32 bytes, then 1 and 3
  uint8_t qh[64];     // upper pairs, as the pairs of Q2_K
  int8_t scales[16];  // per group of 16
  uint16_t d;

  void decode(float* y) const {
    const float scale = f16_to_f32(d);
    for (size_t group = 0; group < 16; ++group) {
      const float by = scale * static_cast<float>(scales[group]);
      const uint8_t* low = ql + group / 8 * 64 + group % 4 * 16;
      for (size_t i = 0; i < 16; ++i) {
        const int nibble = group % 8 < 4 ? low[i] & 15 : low[i] >> 4;
        const int value = nibble | two_bits(qh, group, i) << 4;
        y[group * 16 + i] = by * static_cast<float>(value - 32);
      }
    }
  }
};

// Blocks are copied out because data in a file may lie at any address.
template <class Block>
void decode_blocks(const void* src, float* dst, size_t n) {
  const auto* bytes = static_cast<const std::byte*>(src);
  for (size_t i = 0; i < n; i += Block::kElements, bytes += sizeof(Block)) {
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    block.decode(dst + i);
  }
}

template <class Block>
void encode_blocks(const float* src, void* dst, size_t n) {
  auto* bytes = static_cast<std::byte*>(dst);
  for (size_t i = 0; i < n; i += Block::kElements, bytes += sizeof(Block)) {
    Block block;
    block.encode(src + i);
    std::memcpy(bytes, &block, sizeof block);
  }
}

template <class Convert>
void decode_16bit(const void* src, float* dst, size_t n, Convert convert) {
  const auto* bytes = static_cast<const std::byte*>(src);
  for (size_t i = 0; i < n; ++i) {
    uint16_t value;
    std::memcpy(&value, bytes + 2 * i, sizeof value);
    dst[i] = convert(value);
  }
}

template <class Convert>
void encode_16bit(const float* src, void* dst, size_t n, Convert convert) {
  auto* bytes = static_cast<std::byte*>(dst);
  for (size_t i = 0; i < n; ++i) {
    const uint16_t value = convert(src[i]);
    std::memcpy(bytes + 2 * i, &value, sizeof value);
  }
}

void check_elements(GgmlType type, size_t n) {
  const uint32_t block = block_elements(type);
  if (block != 0 && n % block != 0)
    throw Error(ErrorKind::kInternal, std::to_string(n) + " elements of " + name(type) +
                                          " asked for; its blocks have " + std::to_string(block));
}

}  // namespace

void dequantize(GgmlType type, const void* src, float* dst, size_t n) {
  check_elements(type, n);
  switch (type) {
    case GgmlType::kF32:
      if (n > 0) std::memcpy(dst, src, n * sizeof(float));
      return;
    case GgmlType::kF16:
      return decode_16bit(src, dst, n, f16_to_f32);
    case GgmlType::kBF16:
      return decode_16bit(src, dst, n, bf16_to_f32);
    case GgmlType::kQ4_0:
      return decode_blocks<Q4_0>(src, dst, n);
    case GgmlType::kQ4_1:
      return decode_blocks<Q4_1>(src, dst, n);
    case GgmlType::kQ5_0:
      return decode_blocks<Q5_0>(src, dst, n);
    case GgmlType::kQ5_1:
      return decode_blocks<Q5_1>(src, dst, n);
    case GgmlType::kQ8_0:
      return decode_blocks<Q8_0>(src, dst, n);
    case GgmlType::kQ2_K:
      return decode_blocks<Q2_K>(src, dst, n);
    case GgmlType::kQ3_K:
      return decode_blocks<Q3_K>(src, dst, n);
    case GgmlType::kQ4_K:
      return decode_blocks<Q4_K>(src, dst, n);
    case GgmlType::kQ5_K:
      return decode_blocks<Q5_K>(src, dst, n);
    case GgmlType::kQ6_K:
      return decode_blocks<Q6_K>(src, dst, n);
    case GgmlType::kIQ4_NL:
      return decode_blocks<IQ4_NL>(src, dst, n);
  }
  throw input_error(std::string("tensors of type ") + name(type) + " cannot be read");
}

void quantize(GgmlType type, const float* src, void* dst, size_t n) {
  check_elements(type, n);
  switch (type) {
    case GgmlType::kF32:
      if (n > 0) std::memcpy(dst, src, n * sizeof(float));
      return;
    case GgmlType::kF16:
      return encode_16bit(src, dst, n, f32_to_f16);
    case GgmlType::kBF16:
      return encode_16bit(src, dst, n, f32_to_bf16);
    case GgmlType::kQ4_0:
      return encode_blocks<Q4_0>(src, dst, n);
    case GgmlType::kQ8_0:
      return encode_blocks<Q8_0>(src, dst, n);
    default:
      throw input_error(std::string("tensors of type ") + name(type) +
                        " cannot be written; choose F32, F16, BF16, Q8_0 or Q4_0");
  }
}

}  // namespace kvasir
