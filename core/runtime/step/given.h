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

// Of a piece whose projections are given only the last queries are attended, and only where some
// plugin asks for their attention mass: at most so many where the prompt ends, and so many at the
// end of each piece before. Attention of all of them would take as long as reading a prompt;
// StepItem::given_to_all_askers has it nevertheless.
inline constexpr uint32_t kGivenQueriesAtEnd = 64;
inline constexpr uint32_t kGivenQueriesPerPiece = 1;

}  // namespace kvasir
