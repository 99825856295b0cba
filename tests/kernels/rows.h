// Random K and V rows for the kernel tests, stored as a cache stores them, and scratch memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/representative.h"

namespace kvasir::test {

// The stored bits of a value that the type can represent, by search in the oracle's own decoder.
inline uint16_t half_bits(double value, kernels::ElementType type) {
  if (type == kernels::ElementType::kBF16) {
    const auto f = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &f, sizeof(bits));
    return static_cast<uint16_t>(bits >> 16);
  }
  uint16_t low = 0;  // finite non-negative f16 patterns are ordered like their values
  uint16_t high = 0x7bff;
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    if (kernels::reference::element(&middle, 0, type) < std::fabs(value)) {
      low = static_cast<uint16_t>(middle + 1);
    } else {
      high = middle;
    }
  }
  return static_cast<uint16_t>(low | (value < 0 ? 0x8000 : 0));
}

// Values rounded by the oracle and stored, `stride` bytes per row; the gap holds NaN, which must
// never be read.
inline std::vector<uint8_t> store_rows(const std::vector<float>& values, size_t width,
                                       size_t stride, kernels::ElementType type) {
  const size_t bytes = kernels::element_bytes(type);
  std::vector<uint8_t> out(values.size() / std::max<size_t>(width, 1) * stride, 0xff);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* at = out.data() + i / width * stride + i % width * bytes;
    if (type == kernels::ElementType::kF32) {
      std::memcpy(at, &values[i], 4);
    } else {
      const uint16_t bits = half_bits(kernels::reference::round_to(values[i], type), type);
      std::memcpy(at, &bits, 2);
    }
  }
  return out;
}

inline std::vector<float> random_floats(size_t n, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// n_tokens rows of K and V with a gap between rows.
struct StoredKv {
  std::vector<uint8_t> k, v;
  kernels::KvRows rows;

  StoredKv(const kernels::AttentionShape& shape, size_t n_tokens, uint32_t seed,
           float scale = 1.0f) {
    const size_t k_stride = (shape.head_dim + 2) * kernels::element_bytes(shape.k_type);
    const size_t v_stride = (shape.v_dim + 4) * kernels::element_bytes(shape.v_type);
    k = store_rows(random_floats(n_tokens * shape.head_dim, scale, seed), shape.head_dim, k_stride,
                   shape.k_type);
    v = store_rows(random_floats(n_tokens * shape.v_dim, 1.0f, seed + 1), shape.v_dim, v_stride,
                   shape.v_type);
    rows.k = k.data();
    rows.v = v.data();
    rows.k_token_stride = k_stride;
    rows.v_token_stride = v_stride;
    rows.end = static_cast<uint32_t>(n_tokens);
  }
};

// 64-byte aligned memory of exactly the size asked for, so that an overrun is seen.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : memory_(bytes + 64, 0xff) {}  // NaN patterns
  void* get() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + ((64 - at % 64) % 64);
  }

 private:
  std::vector<uint8_t> memory_;
};

inline double largest(const std::vector<double>& values) {
  double high = 0;
  for (double x : values) high = std::fmax(high, std::fabs(x));
  return high;
}

// max |difference| <= tolerance * max |expected|; an infinity must be met exactly.
inline void check_close(const std::vector<float>& actual, const std::vector<double>& expected,
                        double tolerance) {
  REQUIRE(actual.size() == expected.size());
  double scale = 0;
  for (double x : expected) {
    if (std::isfinite(x)) scale = std::fmax(scale, std::fabs(x));
  }
  double worst = 0;
  bool same_special = true;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isfinite(expected[i])) {
      const double difference = std::fabs(static_cast<double>(actual[i]) - expected[i]);
      worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
    } else {
      same_special = same_special && static_cast<double>(actual[i]) == expected[i];
    }
  }
  CHECK(same_special);
  CHECK(worst <= tolerance * scale);
}

}  // namespace kvasir::test
