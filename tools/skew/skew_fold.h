// Skewing matrices multiplied into the weights (InfiniGen, arXiv:2406.19707): for models whose keys
// are not rotated, queries and keys come out skewed, and nothing is left to do at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/model/gguf/gguf.h"
#include "tools/skew/skew.h"

namespace kvasir {

// weight [n_heads * head_dim][n_in], the rows of W_q or W_k: those of a head become A^T times them,
// so that q and k become q A and k A, and (Q A)(K A)^T = Q K^T. Query heads of a group share the A
// of their kv head. A bias is a weight with n_in = 1. Summed in double.
void fold_skew(const SkewMatrices& skew, uint32_t layer, uint32_t n_heads, std::span<float> weight);

// Error(kInput) when A cannot be folded: RoPE and the norm of queries and keys come between the
// weights and the dot product, and A commutes with neither.
void check_foldable(const ModelShape& shape);

// `file` with A folded into attn_q and attn_k (weights and biases), which become f32; all else byte
// for byte. The file appears complete or not at all. Error(kInput): see check_foldable().
void write_folded_model(const GgufFile& file, const ModelShape& shape, const SkewMatrices& skew,
                        const std::string& path);

}  // namespace kvasir
