// Random K and V rows for the kernel tests, stored as a cache stores them, and scratch memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/representative.h"

namespace kvasir::test {

// What the n finite patterns from 0 on stand for; they are ordered like their values.
template <class Bits>
std::vector<double> finite_values(kernels::ElementType type, size_t n) {
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<Bits>(i);
    out[i] = kernels::reference::element(&bits, 0, type);
  }
  return out;
}

// The first whose value is at least |value|, or the last.
inline size_t pattern_of(const std::vector<double>& values, double value) {
  const auto at = std::lower_bound(values.begin(), values.end(), std::fabs(value));
  return std::min(static_cast<size_t>(at - values.begin()), values.size() - 1);
}

// The stored bits of a value that the type can represent, by search in the oracle's own decoder.
inline uint16_t half_bits(double value, kernels::ElementType type) {
  if (type == kernels::ElementType::kBF16) {
    const auto f = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &f, sizeof(bits));
    return static_cast<uint16_t>(bits >> 16);
  }
  static const std::vector<double> values = finite_values<uint16_t>(type, 0x7c00);
  return static_cast<uint16_t>(pattern_of(values, value) | (value < 0 ? 0x8000 : 0));
}

inline uint8_t fp8_bits(double value) {
  static const std::vector<double> values =
      finite_values<uint8_t>(kernels::ElementType::kFp8E4M3, 0x7f);
  return static_cast<uint8_t>(pattern_of(values, value) | (value < 0 ? 0x80 : 0));
}

inline constexpr kernels::ElementType kElementTypes[] = {
    kernels::ElementType::kF32,  kernels::ElementType::kF16,  kernels::ElementType::kBF16,
    kernels::ElementType::kQ8_0, kernels::ElementType::kQ4_0, kernels::ElementType::kFp8E4M3};

inline bool can_store(kernels::ElementType type, size_t width) {
  return width % kernels::group_elements(type) == 0;
}

// One group of 32, by the definition in kernels/convert.h.
inline void store_group(const float* values, kernels::ElementType type, uint8_t* out) {
  using kernels::ElementType;
  double extreme = 0;
  for (size_t i = 0; i < 32; ++i)
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  const bool is_nibble = type == ElementType::kQ4_0;
  const float wanted = static_cast<float>(is_nibble ? extreme / -8.0 : std::fabs(extreme) / 127.0);
  const double scale = kernels::reference::round_to(wanted, ElementType::kF16);
  const uint16_t bits = half_bits(scale, ElementType::kF16);
  std::memcpy(out, &bits, 2);
  for (size_t i = 0; i < 32; ++i) {
    const double high = is_nibble ? 7 : 127, low = is_nibble ? -8 : -127;
    const double step =
        scale == 0 ? 0 : std::clamp(std::nearbyint(double{values[i]} / scale), low, high);
    if (!is_nibble)
      out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(step));
    else if (i < 16)
      out[2 + i] = static_cast<uint8_t>(step + 8);
    else
      out[2 + i - 16] = static_cast<uint8_t>(out[2 + i - 16] + 16 * (step + 8));
  }
}

// Values rounded by the oracle and stored, `stride` bytes per row; the gap holds NaN, which must
// never be read.
inline std::vector<uint8_t> store_rows(const std::vector<float>& values, size_t width,
                                       size_t stride, kernels::ElementType type) {
  const size_t group = kernels::group_elements(type), bytes = kernels::row_bytes(type, group);
  std::vector<uint8_t> out(values.size() / std::max<size_t>(width, 1) * stride, 0xff);
  for (size_t i = 0; i < values.size(); i += group) {
    uint8_t* at = out.data() + i / width * stride + i % width / group * bytes;
    if (type == kernels::ElementType::kF32) {
      std::memcpy(at, &values[i], 4);
    } else if (group > 1) {
      store_group(&values[i], type, at);
    } else if (type == kernels::ElementType::kFp8E4M3) {
      *at = fp8_bits(kernels::reference::round_to(values[i], type));
    } else {
      const uint16_t bits = half_bits(kernels::reference::round_to(values[i], type), type);
      std::memcpy(at, &bits, 2);
    }
  }
  return out;
}

// Bytes from row to row, with a gap that keeps elements aligned.
inline size_t row_stride(kernels::ElementType type, size_t width, size_t gap_elements) {
  return kernels::row_bytes(type, width) +
         (type == kernels::ElementType::kF32 ? 4 : 2) * gap_elements;
}

inline constexpr float kInf = std::numeric_limits<float>::infinity();
// Of attention, relative to the largest output.
inline constexpr double kAttentionTolerance = 1e-5;

inline std::vector<float> random_floats(size_t n, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// n_tokens rows of K and V with a gap between rows: of so many elements of K, and twice as many of
// V.
struct StoredKv {
  std::vector<uint8_t> k, v;
  kernels::KvRows rows;

  StoredKv(const kernels::AttentionShape& shape, size_t n_tokens, uint32_t seed, float scale = 1.0f,
           size_t gap = 2) {
    const size_t k_stride = row_stride(shape.k_type, shape.head_dim, gap);
    const size_t v_stride = row_stride(shape.v_type, shape.v_dim, 2 * gap);
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
