// Random weights of every type that the device multiplies, and what they stand for: numbers of the
// decoder of model files, whose own tests compare it with ggml.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "kernels/cuda/weight_type.h"

namespace kvasir::test {

inline constexpr GgmlType kWeightTypes[] = {
    GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16, GgmlType::kQ4_0,  GgmlType::kQ4_1,
    GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kQ2_K,  GgmlType::kQ3_K,
    GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL};

inline cuda::WeightType weight_type(GgmlType type) { return static_cast<cuda::WeightType>(type); }

// Offsets of the f16 numbers of a block, beside which every bit pattern is a number.
inline std::vector<size_t> scales_at(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2};
    case GgmlType::kQ2_K:
      return {80, 82};
    case GgmlType::kQ3_K:
      return {108};
    case GgmlType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// n_out rows of n_in elements, one behind the other, every bit of a block random but its scales.
struct WeightCase {
  GgmlType type;
  uint32_t n_in, n_out;
  uint64_t row_bytes;
  std::vector<uint8_t> bytes;
  std::vector<float> values;  // [n_out, n_in]

  WeightCase(GgmlType of, uint32_t in, uint32_t out, uint32_t seed)
      : type(of),
        n_in(in),
        n_out(out),
        row_bytes(uint64_t{in} / block_elements(of) * block_bytes(of)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    bytes.resize(row_bytes * n_out);
    values.resize(size_t{n_in} * n_out);
    if (block_elements(type) == 1) {
      for (float& x : values) x = normal(random);
      quantize(type, values.data(), bytes.data(), values.size());
    } else {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      for (size_t block = 0; block < bytes.size(); block += block_bytes(type)) {
        for (const size_t at : scales_at(type)) {
          const uint16_t half = f32_to_f16(normal(random));
          std::memcpy(bytes.data() + block + at, &half, 2);
        }
      }
    }
    for (uint32_t o = 0; o < n_out; ++o)
      dequantize(type, bytes.data() + o * row_bytes, values.data() + size_t{o} * n_in, n_in);
  }
};

// Widths that end in the middle of what a lane, a warp and a block of threads take.
inline std::vector<uint32_t> odd_widths(GgmlType type) {
  const uint32_t block = block_elements(type);
  if (block == 1) return {1, 7, 8, 37, 1030};
  if (block == 32) return {32, 96, 1056};
  return {256, 768, 1280};
}

}  // namespace kvasir::test
