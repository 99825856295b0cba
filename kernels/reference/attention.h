// Attention straight from its formula, in double: the oracle of the fast kernels and the
// arithmetic of the reference backend.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"

namespace kvasir::kernels::reference {

// One query row of a group of query heads; query `query` of `mask` (ignored without positions).
//   q [group_size, head_dim], o [group_size, v_dim] and lse [group_size] written.
void attention(const AttentionShape& shape, const float* q, size_t query, const PositionMask& mask,
               std::span<const KvRows> items, double* o, double* lse);

// mass[g][i] = exp(logit[g, i] - lse_final[g]) of every row i of `items`, in their order; 0 for
// rows the mask hides. mass [group_size][number of rows], written.
void attention_mass(const AttentionShape& shape, const float* q, size_t query,
                    const PositionMask& mask, std::span<const KvRows> items,
                    const double* lse_final, double* mass);

// The merge of kernels/attention_state.h.
void merge_attention(double* o, double* lse, const double* other_o, double other_lse, size_t v_dim);

// One stored element as a double; the first n of a row.
double element(const void* row, size_t index, ElementType type);
void elements(const void* row, size_t n, ElementType type, double* out);

}  // namespace kvasir::kernels::reference
