// What a recorded run of attention says about one sequence, and its output against attention in
// double over the same tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/core/runtime/support.h"
#include "tests/oracles/harness/world.h"

namespace kvasir::oracle {

// Where RoPE puts queries and keys.
struct Placing {
  // Tokens at this distance and beyond are attended as if all lay one short of it; 0: none are.
  uint32_t constant_distance = 0;
  bool by_slot = false;  // at their index among what is attended
};

// Per kv head the tokens that at least one query of the run sees, ascending. A token may be near to
// some queries and far from others: it is listed twice then, unless `once`.
std::vector<Indices> tokens_by_head(const test::RecordedRun& run, SequenceId id,
                                    uint32_t n_kv_heads, bool once);

// [kv_head][token of `tokens`][head of the group]; zeros where the run has none.
std::vector<std::vector<Vector>> weights_by_head(const test::RecordedRun& run, SequenceId id,
                                                 const std::vector<Indices>& tokens,
                                                 uint32_t group);

// Largest difference of the last token's output, o [q_head][head_dim], from the exact one.
double output_error(const test::RecordedRun& run, SequenceId id, const Track& track,
                    const Placing& placing, const float* o);

}  // namespace kvasir::oracle
