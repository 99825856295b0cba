// What the attention kernels attend to: K and V rows of one kv head, described by pointers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element_type.h"

namespace kvasir::kernels {

// Geometry of one work item: the group_size query heads that share a kv head.
// logit = softcap(softmax_scale * q.k) + log_weight, softcap(x) = softcap * tanh(x / softcap).
struct AttentionShape {
  uint32_t group_size = 1;
  uint32_t head_dim = 0;  // elements of a K row and of a query
  uint32_t v_dim = 0;     // elements of a V row
  ElementType k_type = ElementType::kF32;
  ElementType v_type = ElementType::kF32;
  float softmax_scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  // Whether products with q8_0 and q4_0 may be made in integers of 16 and 8 bits; read by
  // attention_decode, which says what that costs. Others multiply in f32.
  bool in_integers = false;
};

// Rows of one block. Row i in [begin, end) is token i of the block, or tokens[i] when `tokens` is
// given. K and V rows are contiguous along the head and aligned to their element.
struct KvRows {
  const void* k = nullptr;      // token 0
  const void* v = nullptr;      // token 0; not read by the mass kernel
  uint64_t k_token_stride = 0;  // bytes
  uint64_t v_token_stride = 0;  // bytes
  uint32_t begin = 0;
  uint32_t end = 0;
  const uint32_t* tokens = nullptr;
  // Natural-log weight added to the logit of row i and query head g of the group:
  // log_weight[i * weight_row_stride + (weight_width == 1 ? 0 : g)]; -inf: not attended.
  const float* log_weight = nullptr;
  uint32_t weight_width = 0;       // 0: none; 1: one for the group; group_size: one per query head
  uint32_t weight_row_stride = 0;  // floats; 0: one weight (or group of weights) for all rows
  // Position of row i: first_pos + token, or pos[token]. Read by kernels that take a mask.
  uint32_t first_pos = 0;
  const uint32_t* pos = nullptr;
};

// Which keys a query at position q may attend to: k <= q and q - k in [dist_min, dist_max).
struct PositionMask {
  const uint32_t* q_pos = nullptr;  // [n_q]; nullptr: everything is attended
  uint32_t dist_min = 0;
  uint32_t dist_max = UINT32_MAX;  // UINT32_MAX: no upper bound
};

}  // namespace kvasir::kernels
