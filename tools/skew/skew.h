// Skewing matrices of a model (InfiniGen, arXiv:2406.19707): per layer and kv head the orthogonal A
// whose columns are the right singular vectors of the queries of a sample text, after RoPE. Few
// columns of Q A and K A then hold most of Q K^T, which A leaves as it is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/model/layers/model.h"
#include "core/platform/thread_pool.h"

namespace kvasir {

struct SkewMatrices {
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<float> columns;  // [layer][kv head][column][head_dim], by falling singular value
  // [layer][kv head][q, k][column]: sums of |Q A| over tokens and query heads, of |K A| over tokens
  std::vector<float> sums{};
};

// Keys belong to a kv head, so its query heads share one A: that of their queries stacked, which
// is the best for the sum of their squared errors. Runs the model over the sample with exact
// attention, one layer at a time over all of it. max_batch_tokens: of the model's options. Throws
// Error(kInput) when the sample has fewer tokens than head_dim: then A would be arbitrary. The sums
// are those of `column_text`, or of the sample where it is empty.
SkewMatrices skew_matrices(const Model& model, ThreadPool& pool, std::span<const int32_t> sample,
                           uint32_t max_batch_tokens,
                           const std::function<void(uint32_t done, uint32_t total)>& progress = {},
                           std::span<const int32_t> column_text = {});

// What skew_matrices() and writing its result take beside the model, for samples of so many tokens
// together.
uint64_t skew_bytes(const ModelShape& shape, uint64_t n_tokens);

// In the format of kvasir/ext/draft/skew.h; the file appears complete or not at all.
void write_skew_file(const SkewMatrices& skew, uint64_t model_hash, const std::string& path);

}  // namespace kvasir
