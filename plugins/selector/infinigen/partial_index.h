// The arithmetic of InfiniGen's partial keys: skewed vectors, records of a few columns of them, and
// how queries score the records. Knows no sequences and no steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/representative.h"

namespace kvasir::infinigen {

enum class PartialType { kF16, kInt8 };

// A partial key: some columns of one token's key, in the order in which they were chosen. f16, or
// int8 with one f32 scale before them (value = scale * byte). A record holds those of one block.
struct PartialFormat {
  PartialType type = PartialType::kF16;
  uint32_t n_columns = 0;  // at most; fewer may be used
  uint64_t key_bytes() const {
    return type == PartialType::kF16 ? n_columns * 2ull : 4ull + (n_columns + 3ull) / 4 * 4;
  }
  // Of one key, when the first n columns are used.
  uint64_t bytes_read(size_t n) const { return type == PartialType::kF16 ? n * 2ull : 4ull + n; }
};

// The matrix A of one layer and kv head; null: identity.   columns [head_dim][head_dim]
struct Skew {
  const float* columns = nullptr;
  uint32_t head_dim = 0;
};

// y[i, c] = x[i] . A[:, chosen[c]] for n vectors; all columns when `chosen` is empty.
//   x [n][head_dim], y [n][columns]. `matrix` is scratch that it may grow.
void project(const Skew& skew, std::span<const uint16_t> chosen, const float* x, size_t n, float* y,
             std::vector<float>& matrix);

// One token's partial key.   values [n], n <= format.n_columns
void store_key(const PartialFormat& format, const float* values, size_t n, std::byte* to);

// score[g * stride + t] = q[g] . key t, over the first n columns.   q [n_heads][n]
void score_keys(const PartialFormat& format, const float* q, size_t n_heads, size_t n,
                const std::byte* keys, size_t n_keys, float* score, size_t stride,
                std::vector<float>& scratch);

}  // namespace kvasir::infinigen
