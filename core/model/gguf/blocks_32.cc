// Blocks of 32 elements: to f32 and back. The five evenly spaced types are encoded as
// llama.cpp's reference encoders do, byte for byte; IQ4_NL searches its scale (block_fit.h).
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/blocks_32.h"

#include "core/model/gguf/block_fit.h"
#include "core/model/gguf/blocks.h"

namespace kvasir::gguf {
namespace {

// value(nibble, i) is element i.
template <class Value>
void decode_nibbles(const uint8_t* qs, float* y, const Value& value) {
  for (size_t i = 0; i < 16; ++i) {
    y[i] = value(qs[i] & 15, i);
    y[i + 16] = value(qs[i] >> 4, i + 16);
  }
}

// quant(i) is the quantised element i, of which the low four bits are kept.
template <class Quant>
void encode_nibbles(uint8_t* qs, const Quant& quant) {
  for (size_t i = 0; i < 16; ++i)
    qs[i] = static_cast<uint8_t>((quant(i) & 15) | (quant(i + 16) & 15) << 4);
}

class FifthBits {
 public:
  explicit FifthBits(const uint8_t* qh) { std::memcpy(&bits_, qh, sizeof bits_); }
  int operator()(size_t i) const { return static_cast<int>(bits_ >> i & 1) << 4; }

 private:
  uint32_t bits_;
};

template <class Quant>
void encode_fifth_bits(uint8_t* qh, const Quant& quant) {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(quant(i) >> 4 & 1) << i;
  std::memcpy(qh, &bits, sizeof bits);
}

// y = d (q - half): the extreme value, with its sign, becomes q = 0, the end of the range that has
// one more step. The opposite end is cut half a step short of it.
struct Centred {
  const float* x;
  float scale, inverse, half;
  Centred(const float* values, int half_range)
      : x(values),
        scale(extreme(values, 32) / static_cast<float>(-half_range)),
        inverse(inverse_of(scale)),
        half(static_cast<float>(half_range)) {}
  int operator()(size_t i) const {
    return static_cast<int>(clamped(x[i] * inverse + (half + 0.5f), 0.0f, 2.0f * half - 1.0f));
  }
};

// y = d q + m: from the smallest value to the largest.
struct FromMinimum {
  const float* x;
  float min, scale, inverse, most;
  FromMinimum(const float* values, int most_quant)
      : x(values),
        min(*std::min_element(values, values + 32)),
        scale((*std::max_element(values, values + 32) - min) / static_cast<float>(most_quant)),
        inverse(inverse_of(scale)),
        most(static_cast<float>(most_quant)) {}
  int operator()(size_t i) const {
    return static_cast<int>(clamped((x[i] - min) * inverse + 0.5f, 0.0f, most));
  }
};

}  // namespace

void Q4_0::decode(float* y) const {
  const float scale = f16_to_f32(d);
  decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(q - 8); });
}

void Q4_0::encode(const float* x) {
  const Centred quant(x, 8);
  d = f32_to_f16(quant.scale);
  encode_nibbles(qs, quant);
}

void Q4_1::decode(float* y) const {
  const float scale = f16_to_f32(d);
  const float min = f16_to_f32(m);
  decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(q) + min; });
}

void Q4_1::encode(const float* x) {
  const FromMinimum quant(x, 15);
  d = f32_to_f16(quant.scale);
  m = f32_to_f16(quant.min);
  encode_nibbles(qs, quant);
}

void Q5_0::decode(float* y) const {
  const float scale = f16_to_f32(d);
  const FifthBits fifth(qh);
  decode_nibbles(qs, y,
                 [&](int q, size_t i) { return scale * static_cast<float>((q | fifth(i)) - 16); });
}

void Q5_0::encode(const float* x) {
  const Centred quant(x, 16);
  d = f32_to_f16(quant.scale);
  encode_fifth_bits(qh, quant);
  encode_nibbles(qs, quant);
}

void Q5_1::decode(float* y) const {
  const float scale = f16_to_f32(d);
  const float min = f16_to_f32(m);
  const FifthBits fifth(qh);
  decode_nibbles(qs, y,
                 [&](int q, size_t i) { return scale * static_cast<float>(q | fifth(i)) + min; });
}

void Q5_1::encode(const float* x) {
  const FromMinimum quant(x, 31);
  d = f32_to_f16(quant.scale);
  m = f32_to_f16(quant.min);
  encode_fifth_bits(qh, quant);
  encode_nibbles(qs, quant);
}

void Q8_0::decode(float* y) const {
  const float scale = f16_to_f32(d);
  for (size_t i = 0; i < kElements; ++i) y[i] = scale * static_cast<float>(qs[i]);
}

void Q8_0::encode(const float* x) {
  const float scale = largest_magnitude(x, kElements) / 127.0f;
  const float inverse = inverse_of(scale);
  d = f32_to_f16(scale);
  for (size_t i = 0; i < kElements; ++i)
    qs[i] = static_cast<int8_t>(clamped(std::round(x[i] * inverse), -127.0f, 127.0f));
}

void IQ4_NL::decode(float* y) const {
  const float scale = f16_to_f32(d);
  decode_nibbles(qs, y, [&](int q, size_t) { return scale * static_cast<float>(kLevels[q]); });
}

void IQ4_NL::encode(const float* x) {
  d = f32_to_f16(fit_levels(x));
  const float inverse = inverse_of(f16_to_f32(d));
  encode_nibbles(qs, [&](size_t i) { return nearest_level(x[i] * inverse); });
}

}  // namespace kvasir::gguf
