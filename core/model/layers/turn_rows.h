// RoPE of what a model has projected, on the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/model/layers/model.h"

namespace kvasir {

// By model.rope(layer), in place: q [rows, n_q_heads, head_dim], k likewise with n_kv_heads. Rows
// of no turn stay as they are.
void turn_rows(const Model& model, uint32_t layer, std::span<const Model::Turn> turns, float* q,
               float* k);

}  // namespace kvasir
