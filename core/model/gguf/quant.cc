// Tensor elements to f32, and f32 to the types that are written: which family of blocks, and the
// check of what is given.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/quant.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/model/gguf/blocks.h"
#include "core/model/gguf/blocks_32.h"
#include "core/model/gguf/blocks_k.h"
#include "core/model/gguf/gguf_format.h"

namespace kvasir {
namespace {

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

// The largest magnitude that `type` holds, as bits: what is larger, infinite or NaN has more.
uint32_t most_bits(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return 0xFFFFFFFFu;  // copied as it is
    case GgmlType::kBF16:
      return 0x7F7F7FFFu;  // the next float rounds to infinity
    default:
      return std::bit_cast<uint32_t>(gguf::kMostOfBlock);
  }
}

std::string shown(float value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%g", static_cast<double>(value));
  return text.data();
}

void check_values(GgmlType type, const float* src, size_t n, const ElementsOf& from) {
  const uint32_t most = most_bits(type);
  const auto magnitude = [](float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; };
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(src[i]));
  if (largest <= most) return;
  const float* bad = std::find_if(src, src + n, [&](float x) { return magnitude(x) > most; });
  const std::string what =
      (from.tensor.empty() ? "" : "tensor " + gguf::in_quotes(from.tensor) + ": ") + "element " +
      std::to_string(from.first + static_cast<size_t>(bad - src)) + " is " + shown(*bad);
  if (!std::isfinite(*bad))
    throw input_error(what + ", which " + name(type) +
                      " does not hold; the weights are damaged, convert the model again");
  throw input_error(what + ", beyond what " + name(type) + " holds (" +
                    shown(type == GgmlType::kBF16 ? 3.38953e38f : 65504.0f) + "); choose " +
                    (type == GgmlType::kBF16 ? "F32" : "BF16 or F32"));
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
      return gguf::decode_blocks<gguf::Q4_0>(src, dst, n);
    case GgmlType::kQ4_1:
      return gguf::decode_blocks<gguf::Q4_1>(src, dst, n);
    case GgmlType::kQ5_0:
      return gguf::decode_blocks<gguf::Q5_0>(src, dst, n);
    case GgmlType::kQ5_1:
      return gguf::decode_blocks<gguf::Q5_1>(src, dst, n);
    case GgmlType::kQ8_0:
      return gguf::decode_blocks<gguf::Q8_0>(src, dst, n);
    case GgmlType::kQ2_K:
      return gguf::decode_blocks<gguf::Q2_K>(src, dst, n);
    case GgmlType::kQ3_K:
      return gguf::decode_blocks<gguf::Q3_K>(src, dst, n);
    case GgmlType::kQ4_K:
      return gguf::decode_blocks<gguf::Q4_K>(src, dst, n);
    case GgmlType::kQ5_K:
      return gguf::decode_blocks<gguf::Q5_K>(src, dst, n);
    case GgmlType::kQ6_K:
      return gguf::decode_blocks<gguf::Q6_K>(src, dst, n);
    case GgmlType::kIQ4_NL:
      return gguf::decode_blocks<gguf::IQ4_NL>(src, dst, n);
  }
  throw input_error(std::string("tensors of type ") + name(type) + " cannot be read");
}

bool is_written(GgmlType type) {
  return is_supported(type) && type != GgmlType::kQ2_K && type != GgmlType::kQ3_K;
}

void quantize(GgmlType type, const float* src, void* dst, size_t n, const ElementsOf& from) {
  check_elements(type, n);
  check_values(type, src, n, from);
  switch (type) {
    case GgmlType::kF32:
      if (n > 0) std::memcpy(dst, src, n * sizeof(float));
      return;
    case GgmlType::kF16:
      return encode_16bit(src, dst, n, f32_to_f16);
    case GgmlType::kBF16:
      return encode_16bit(src, dst, n, f32_to_bf16);
    case GgmlType::kQ4_0:
      return gguf::encode_blocks<gguf::Q4_0>(src, dst, n);
    case GgmlType::kQ4_1:
      return gguf::encode_blocks<gguf::Q4_1>(src, dst, n);
    case GgmlType::kQ5_0:
      return gguf::encode_blocks<gguf::Q5_0>(src, dst, n);
    case GgmlType::kQ5_1:
      return gguf::encode_blocks<gguf::Q5_1>(src, dst, n);
    case GgmlType::kQ8_0:
      return gguf::encode_blocks<gguf::Q8_0>(src, dst, n);
    case GgmlType::kQ4_K:
      return gguf::encode_blocks<gguf::Q4_K>(src, dst, n);
    case GgmlType::kQ5_K:
      return gguf::encode_blocks<gguf::Q5_K>(src, dst, n);
    case GgmlType::kQ6_K:
      return gguf::encode_blocks<gguf::Q6_K>(src, dst, n);
    case GgmlType::kIQ4_NL:
      return gguf::encode_blocks<gguf::IQ4_NL>(src, dst, n);
    default:
      throw input_error(std::string("tensors of type ") + name(type) +
                        " cannot be written; choose F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                        "IQ4_NL, Q4_K, Q5_K or Q6_K");
  }
}

}  // namespace kvasir
