// Attention mass: how much of the softmax each key received.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/kv_rows.h"

namespace kvasir::kernels {

// Queries of one sequence with their final lse, after all partial results were merged:
//   q + i * q_stride + g * head_dim,  lse + i * lse_stride + g; strides in floats.
struct MassQueries {
  const float* q = nullptr;
  const float* lse = nullptr;
  size_t n_q = 0;
  size_t q_stride = 0;
  size_t lse_stride = 0;
  PositionMask mask;
};

// Bytes of scratch for attention_mass, 64-byte aligned by the caller.
size_t attention_mass_scratch_bytes(const AttentionShape& shape, size_t n_q);

// value[key * width + (width == 1 ? 0 : g)] += sum_i exp(logit[i, g, key] - lse[i, g])
// over the queries i that see the key (and over g when width == 1). Keys are numbered in the order
// of the rows of `items`; V is not read. The caller zeroes `value` before the first call.
//
//   value [number of rows][width] f32, width 1 or group_size
//
// Each K row is read from memory once for all queries; 2 * head_dim operations per query head.
void attention_mass(const AttentionShape& shape, const MassQueries& queries,
                    std::span<const KvRows> items, size_t width, float* value, void* scratch);

}  // namespace kvasir::kernels
