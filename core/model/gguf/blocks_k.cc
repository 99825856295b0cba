// Blocks of 256 elements to f32.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/blocks_k.h"

#include "core/model/gguf/float16.h"

namespace kvasir::gguf {
namespace {

// Two bits per element: groups of 16, in each half of 128 elements four planes of 32 elements share
// the same 32 bytes, plane p in bits 2p and 2p + 1. The low pairs of Q3_K and the upper ones of
// Q6_K lie the same way.
int two_bits(const uint8_t* qs, size_t group, size_t i) {
  return qs[group / 8 * 32 + group % 2 * 16 + i] >> (group % 8 / 2 * 2) & 3;
}

// value(nibble, group, i): the quantised element i of a group of Q4_K or Q5_K.
template <class Block, class Value>
void decode_groups(const Block& block, float* y, const Value& value) {
  const float scale = f16_to_f32(block.d);
  const float min = f16_to_f32(block.dmin);
  for (size_t group = 0; group < 8; ++group) {
    const SixBits::Pair by = block.scales.get(group);
    const float group_scale = scale * static_cast<float>(by.scale);
    const float group_min = min * static_cast<float>(by.min);
    const uint8_t* q = block.qs + group / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      const int nibble = group % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      y[group * 32 + i] = group_scale * static_cast<float>(value(nibble, group, i)) - group_min;
    }
  }
}

}  // namespace

void Q2_K::decode(float* y) const {
  const float scale = f16_to_f32(d);
  const float min = f16_to_f32(dmin);
  for (size_t group = 0; group < 16; ++group) {
    const float group_scale = scale * static_cast<float>(scales[group] & 15);
    const float group_min = min * static_cast<float>(scales[group] >> 4);
    for (size_t i = 0; i < 16; ++i)
      y[group * 16 + i] = group_scale * static_cast<float>(two_bits(qs, group, i)) - group_min;
  }
}

int Q3_K::group_scale(size_t group) const {
  const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
  const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void Q3_K::decode(float* y) const {
  const float scale = f16_to_f32(d);
  for (size_t group = 0; group < 16; ++group) {
    const float by = scale * static_cast<float>(group_scale(group));
    const uint8_t* third = hmask + group % 2 * 16;
    for (size_t i = 0; i < 16; ++i)
      y[group * 16 + i] =
          by * static_cast<float>(two_bits(qs, group, i) - (third[i] >> group / 2 & 1 ? 0 : 4));
  }
}

SixBits::Pair SixBits::get(size_t group) const {
  if (group < 4) return {bytes[group] & 63, bytes[group + 4] & 63};
  return {(bytes[group + 4] & 15) | bytes[group - 4] >> 6 << 4,
          bytes[group + 4] >> 4 | bytes[group] >> 6 << 4};
}

void Q4_K::decode(float* y) const {
  decode_groups(*this, y, [](int q, size_t, size_t) { return q; });
}

void Q5_K::decode(float* y) const {
  decode_groups(*this, y,
                [&](int q, size_t group, size_t i) { return q | (qh[i] >> group & 1) << 4; });
}

void Q6_K::decode(float* y) const {
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

}  // namespace kvasir::gguf
