// What the block types of ggml have in common: bounds of what they hold, rounding, and copying
// blocks from and to bytes at any address. Block layouts: github.com/ggml-org/ggml, types of
// ggml-common.h. Used by quant.cc and the families of blocks only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/model/gguf/float16.h"

namespace kvasir::gguf {

// The values of a block are integers times f16 scales: below half of the smallest half, zero is
// the nearest of them. An encoder that treats such blocks as zeros squares no denormal.
inline constexpr float kSmallestHalf = 0x1p-24f;
inline constexpr float kLeastOfBlock = kSmallestHalf / 2;
// What rounds to the largest half; the next float is infinite. No encoder is given more
// (quantize() in quant.cc), so the scale and minimum of any block fit f16.
inline constexpr float kMostOfBlock = 65520.0f - 0x1p-8f;

// The nearest integer, ties to even, of |x| < 2^22, without a call.
inline float nearest(float x) {
  constexpr float kOneIsLastBit = 0x1.8p23f;
  return (x + kOneIsLastBit) - kOneIsLastBit;
}

inline float clamped(float x, float least, float most) {
  const float low = x < least ? least : x;
  return low > most ? most : low;
}

// 1 / scale; 0 where that would be infinite, which a scale that rounds to the half 0 may have.
inline float inverse_of(float scale) { return std::fabs(scale) > 0x1p-126f ? 1.0f / scale : 0.0f; }

inline float largest_magnitude(const float* x, size_t n) {
  float largest = 0.0f;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// The first of those with the largest magnitude, with its sign.
inline float extreme(const float* x, size_t n) {
  float found = 0.0f;
  for (size_t i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(found)) found = x[i];
  return found;
}

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
    Block block{};
    block.encode(src + i);
    std::memcpy(bytes, &block, sizeof block);
  }
}

}  // namespace kvasir::gguf
