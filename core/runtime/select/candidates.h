// What a selector may choose among: the forced ranges, and the candidates between them. Pure
// functions; nothing here calls a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "core/config/strategy.h"
#include "core/runtime/sequence/sequence.h"

namespace kvasir {

// Tokens [0, sink_end) and [window_begin, kv_len) are always attended; candidates lie between.
// Block selectors: both bounds on block boundaries, the forced part rounded outward. The block that
// holds the current token is always forced.
struct ForcedRange {
  uint32_t sink_end = 0;
  uint32_t window_begin = 0;
};
// n: cached tokens as seen by the first query of the call (its position + 1).
ForcedRange forced_range(const CacheConfig& cache, uint32_t unit, uint32_t n, uint32_t prompt_end);

// One sequence's candidates: [begin, end) in units, or per kv head a list (restricted, evicted, or
// what an earlier selector of a chain chose).
struct Candidates {
  uint32_t unit = KVASIR_UNIT_BLOCK;
  uint32_t begin = 0, end = 0;
  bool listed = false;
  std::vector<HeadSelection> heads;  // when listed: [n_kv_heads], index ascending
  uint64_t count(uint32_t kv_head) const {
    return listed ? heads[kv_head].index.size() : end - begin;
  }
  uint64_t max_count() const;
  // Those of one kv head one by one, ascending.
  std::vector<uint32_t> units_of(uint32_t kv_head) const;
};

// Candidates of one layer after restriction and eviction, in `unit`.
Candidates live_candidates(const LayerState& layer, uint32_t unit, const ForcedRange& forced,
                           uint32_t block_size, uint32_t n_kv_heads);
// Gives every head the union of all heads' lists: for a choice that all heads share.
void share_candidates(Candidates& candidates);
// Blocks to tokens, for a token selector behind a block selector. Weights are left behind.
Candidates expand_to_tokens(const Candidates& blocks, uint32_t block_size);

}  // namespace kvasir
