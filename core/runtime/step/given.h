// Queries, keys and values that are given instead of computed: a context of any length in the time
// that storing it takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace kvasir {

// Before RoPE (but see StepItem::given_turn), of the n tokens from position first_pos on: writes q
// [n][n_q_heads][head_dim], k [n][n_kv_heads][head_dim] and v [n][n_kv_heads][v_head_dim]. Asked
// once per layer, ascending.
using GivenProjections = std::function<void(uint32_t layer, uint32_t first_pos, uint32_t n,
                                            float* q, float* k, float* v)>;

// Which queries of a piece whose projections are given are attended, so that plugins are told of
// them. Attention of all would take as long as reading a prompt.
enum class GivenTo : uint8_t {
  // Where some plugin asks for their attention mass: the last ones, at most kGivenQueriesAtEnd of
  // the piece that ends the prompt, kGivenQueriesPerPiece of each piece before.
  kFew,
  // Every one whose mass some plugin asks for, and every one at all where a selector chooses for
  // prompts: plugins are told what they would be told of a prompt that the model computes.
  kAllAskers
};
inline constexpr uint32_t kGivenQueriesAtEnd = 64;
inline constexpr uint32_t kGivenQueriesPerPiece = 1;

}  // namespace kvasir
