// The arithmetic of row lists: forced ranges, candidates, checking what a selector returned, unions
// of query-head rows. Pure functions; nothing here calls a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <string>
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

// Host-owned rows with the ABI's view on them.
struct ListBuffer {
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> flags;
  std::vector<uint32_t> index;
  std::vector<float> weight;
  std::vector<float> o, lse;  // see offer_contribution()
  kvasir_selection view{};
  // Ready to be filled: max_rows rows, `capacity` indices with group_size weights each. The room
  // for weights is there even where none are allowed: check_selection() refuses them, a null would
  // crash.
  void prepare(uint32_t unit, uint32_t scope, uint32_t action, uint32_t max_lists,
               uint64_t capacity, uint32_t group_size);
  // After prepare(): room for a contribution to n_queries queries, preset to none.
  void offer_contribution(uint64_t n_queries, uint32_t n_q_heads, uint32_t v_dim);
  // Undoes what a callee did to pointers and capacity, which are not its to write.
  void reclaim();

 private:
  uint32_t n_q_heads_ = 1, v_dim_ = 0;
};

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
};

// Candidates of one layer after restriction and eviction, in `unit`.
Candidates live_candidates(const LayerState& layer, uint32_t unit, const ForcedRange& forced,
                           uint32_t block_size, uint32_t n_kv_heads);
// Gives every head the union of all heads' lists: for a choice that all heads share.
void share_candidates(Candidates& candidates);
// Blocks to tokens, for a token selector behind a block selector.
Candidates expand_to_tokens(const Candidates& blocks, uint32_t block_size);

// Checks the rows a selector wrote and turns those of sequence `row` into one selection per kv head
// (or a single shared one). Empty result: fine; otherwise what is wrong ("row 3: index 17 …").
struct CheckContext {
  uint32_t n_seqs = 0;  // sequences in the call
  uint32_t n_q_heads = 0, n_kv_heads = 0;
  uint64_t max_units = UINT64_MAX;  // most indices of a row
  uint32_t finest_scope = 0;
  bool weights_allowed = false;
  bool contribution_allowed = false;
  // Where lists per query block were asked for: queries of one, and how many there are in the one
  // sequence of the call.
  uint32_t query_block = 0, n_query_blocks = 1;
};
std::string check_selection(const kvasir_selection& selection, const CheckContext& context,
                            const std::vector<const Candidates*>& candidates);
// Heads of sequence `row`; fallback is set when any of its rows asked for it. With lists per query
// block: those of block `query_block` of n_query_blocks.
std::vector<HeadSelection> heads_of(const kvasir_selection& selection, uint32_t row,
                                    uint32_t n_q_heads, uint32_t n_kv_heads,
                                    const Candidates& candidates, uint32_t* width, bool* fallback,
                                    uint32_t query_block = 0, uint32_t n_query_blocks = 1);

}  // namespace kvasir
