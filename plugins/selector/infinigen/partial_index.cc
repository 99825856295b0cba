// Products with kernels::score_dot, int8 in plain loops; see partial_index.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/infinigen/partial_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/convert.h"

namespace kvasir::infinigen {
namespace {

// Symmetric to 127 steps; a key of zeros has scale 0.
float quantise(const float* values, size_t n, int8_t* out) {
  float largest = 0.0f;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (size_t i = 0; i < n; ++i)
    out[i] = static_cast<int8_t>(std::lrint(std::clamp(values[i] * inverse, -127.0f, 127.0f)));
  return largest / 127.0f;
}

void score_int8(const PartialFormat& format, const float* q, size_t n_heads, size_t n,
                const std::byte* keys, size_t n_keys, float* score, size_t stride) {
  std::vector<int8_t> query(n);
  for (size_t g = 0; g < n_heads; ++g) {
    const float q_scale = quantise(q + g * n, n, query.data());
    for (size_t t = 0; t < n_keys; ++t) {
      const std::byte* stored = keys + t * format.key_bytes();
      float scale;
      std::memcpy(&scale, stored, sizeof scale);
      const auto* key = reinterpret_cast<const int8_t*>(stored + sizeof scale);
      int32_t sum = 0;
      for (size_t c = 0; c < n; ++c) sum += int32_t{query[c]} * key[c];
      score[g * stride + t] = static_cast<float>(sum) * (q_scale * scale);
    }
  }
}

}  // namespace

void project(const Skew& skew, std::span<const uint16_t> chosen, const float* x, size_t n, float* y,
             std::vector<float>& matrix) {
  const size_t dim = skew.head_dim, n_columns = chosen.empty() ? dim : chosen.size();
  if (!skew.columns) {
    for (size_t i = 0; i < n; ++i)
      for (size_t c = 0; c < n_columns; ++c)
        y[i * n_columns + c] = x[i * dim + (chosen.empty() ? c : chosen[c])];
    return;
  }
  const float* columns = skew.columns;
  const size_t gathered = chosen.empty() ? 0 : n_columns * dim;
  const size_t scratch = kernels::score_scratch_bytes(n, dim) / sizeof(float);
  matrix.resize(gathered + scratch + 16);
  float* work = matrix.data() + gathered;
  work += (64 - reinterpret_cast<uintptr_t>(work) % 64) % 64 / sizeof(float);
  if (!chosen.empty()) {
    for (size_t c = 0; c < n_columns; ++c)
      std::copy_n(columns + chosen[c] * dim, dim, matrix.data() + c * dim);
    columns = matrix.data();
  }
  kernels::score_dot({x, n}, {columns, dim * sizeof(float), n_columns, dim}, y, n_columns, work);
}

void store_key(const PartialFormat& format, const float* values, size_t n, std::byte* to) {
  if (format.type == PartialType::kF16)
    return kernels::convert_from_f32(kernels::ElementType::kF16, values, to, n);
  const float scale = quantise(values, n, reinterpret_cast<int8_t*>(to + sizeof(float)));
  std::memcpy(to, &scale, sizeof scale);
}

void score_keys(const PartialFormat& format, const float* q, size_t n_heads, size_t n,
                const std::byte* keys, size_t n_keys, float* score, size_t stride,
                std::vector<float>& scratch) {
  if (format.type == PartialType::kInt8)
    return score_int8(format, q, n_heads, n, keys, n_keys, score, stride);
  scratch.resize(kernels::score_scratch_bytes(n_heads, n) / sizeof(float) + 16);
  float* work = scratch.data();
  work += (64 - reinterpret_cast<uintptr_t>(work) % 64) % 64 / sizeof(float);
  kernels::score_dot({q, n_heads},
                     {keys, format.key_bytes(), n_keys, n, kernels::ElementType::kF16}, score,
                     stride, work);
}

}  // namespace kvasir::infinigen
