// f32 to blocks of 256 elements. Each group is fitted on its own (block_fit.h); the scales found
// are rounded to the integers of the block, and then every element to the scale that is stored.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "core/model/gguf/block_fit.h"
#include "core/model/gguf/blocks.h"
#include "core/model/gguf/blocks_k.h"

namespace kvasir::gguf {
namespace {

// Not zero unless x is: a block of small numbers rather has a coarse scale than none.
uint16_t nonzero_half(float x) {
  const uint16_t half = f32_to_f16(x);
  const bool lost = x != 0.0f && (half & 0x7FFF) == 0;
  return static_cast<uint16_t>(half | (lost ? 1 : 0));
}

int rounded(float x, float least, float most) {
  return static_cast<int>(nearest(clamped(x, least, most)));
}

// quants[i] in [0, most]: y = d scale q - dmin min. Sets d, dmin and scales of the block.
template <class Block>
std::array<uint8_t, 256> encode_groups(Block& block, const float* x, int most) {
  std::array<ScaleMin, 8> fits;
  ScaleMin largest;
  for (size_t group = 0; group < 8; ++group) {
    fits[group] = fit_scale_min(x + group * 32, most);
    largest.scale = std::max(largest.scale, fits[group].scale);
    largest.min = std::max(largest.min, fits[group].min);
  }
  block.d = nonzero_half(largest.scale / 63.0f);
  block.dmin = nonzero_half(largest.min / 63.0f);
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  const float inverse_d = inverse_of(d), inverse_dmin = inverse_of(dmin);
  std::array<uint8_t, 256> quants;
  for (size_t group = 0; group < 8; ++group) {
    const SixBits::Pair by{rounded(fits[group].scale * inverse_d, 0.0f, 63.0f),
                           rounded(fits[group].min * inverse_dmin, 0.0f, 63.0f)};
    block.scales.set(group, by);
    const float inverse = inverse_of(d * static_cast<float>(by.scale));
    const float min = dmin * static_cast<float>(by.min);
    for (size_t i = group * 32; i < group * 32 + 32; ++i)
      quants[i] =
          static_cast<uint8_t>(rounded((x[i] + min) * inverse, 0.0f, static_cast<float>(most)));
  }
  return quants;
}

// The low four bits of each element.
void pack_groups(const std::array<uint8_t, 256>& quants, uint8_t* qs) {
  for (size_t pair = 0; pair < 4; ++pair)
    for (size_t i = 0; i < 32; ++i)
      qs[pair * 32 + i] = static_cast<uint8_t>((quants[pair * 64 + i] & 15) |
                                               (quants[pair * 64 + 32 + i] & 15) << 4);
}

}  // namespace

void SixBits::set(size_t group, Pair pair) {
  const auto or_into = [&](size_t at, int value) {
    bytes[at] = static_cast<uint8_t>(bytes[at] | value);
  };
  if (group < 4) {
    or_into(group, pair.scale);
    or_into(group + 4, pair.min);
  } else {
    or_into(group + 4, (pair.scale & 15) | (pair.min & 15) << 4);
    or_into(group - 4, pair.scale >> 4 << 6);
    or_into(group, pair.min >> 4 << 6);
  }
}

void Q4_K::encode(const float* x) { pack_groups(encode_groups(*this, x, 15), qs); }

void Q5_K::encode(const float* x) {
  const std::array<uint8_t, 256> quants = encode_groups(*this, x, 31);
  pack_groups(quants, qs);
  for (size_t i = 0; i < 256; ++i)
    qh[i % 32] = static_cast<uint8_t>(qh[i % 32] | quants[i] >> 4 << i / 32);
}

void Q6_K::encode(const float* x) {
  std::array<float, 16> fits;
  for (size_t group = 0; group < 16; ++group) fits[group] = fit_scale(x + group * 16);
  d = nonzero_half(extreme(fits.data(), 16) / -128.0f);
  const float inverse_d = inverse_of(f16_to_f32(d));
  for (size_t group = 0; group < 16; ++group) {
    const int scale = rounded(fits[group] * inverse_d, -128.0f, 127.0f);
    scales[group] = static_cast<int8_t>(scale);
    const float inverse = inverse_of(f16_to_f32(d) * static_cast<float>(scale));
    uint8_t* low = ql + group / 8 * 64 + group % 4 * 16;
    uint8_t* high = qh + group / 8 * 32 + group % 2 * 16;
    for (size_t i = 0; i < 16; ++i) {
      const int q = rounded(x[group * 16 + i] * inverse, -32.0f, 31.0f) + 32;
      low[i] = static_cast<uint8_t>(low[i] | (q & 15) << (group % 8 < 4 ? 0 : 4));
      high[i] = static_cast<uint8_t>(high[i] | q >> 4 << (group % 8 / 2 * 2));
    }
  }
}

}  // namespace kvasir::gguf
