// Lists of indices that selectors write: their memory, the check of what was written, and what they
// mean for each kv head. Pure functions; nothing here calls a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/runtime/select/candidates.h"
#include "core/runtime/sequence/sequence.h"

namespace kvasir {

// Host-owned lists with the ABI's view on them. Used again call after call: weights per query head
// of a long context are megabytes, which would otherwise be taken from the system, preset and given
// back in every layer of every step.
struct ListBuffer {
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> flags;
  std::vector<uint32_t> index;
  std::vector<float> weight;
  std::vector<float> o, lse;  // see offer_contribution()
  kvasir_selection view{};
  // Ready to be filled: max_lists lists, `capacity` indices with group_size weights each, preset to
  // nothing valid. The space for weights is there even where none are allowed, and then not preset:
  // check_selection() refuses them, a null would crash. Memory of an earlier call is used again.
  void prepare(uint32_t unit, uint32_t scope, uint32_t action, uint32_t max_lists,
               uint64_t capacity, uint32_t group_size, bool weights_allowed);
  // After prepare(): space for a contribution to n_queries queries, preset to none.
  void offer_contribution(uint64_t n_queries, uint32_t n_q_heads, uint32_t v_dim);
  // Undoes what a callee did to pointers and capacity, which are not its to write.
  void reclaim();

 private:
  uint32_t n_q_heads_ = 1, v_dim_ = 0;
};

// How many lists a sequence has with `scope`: one for all its heads, or one per kv or query head.
uint32_t heads_in_scope(uint32_t scope, uint32_t n_q_heads, uint32_t n_kv_heads);

// What a call allows the lists to be.
struct CheckContext {
  uint32_t n_seqs = 0;  // sequences in the call
  uint32_t n_q_heads = 0, n_kv_heads = 0;
  uint64_t max_units = UINT64_MAX;  // most indices of a list
  uint32_t finest_scope = 0;
  bool weights_allowed = false;
  bool contribution_allowed = false;
  // Where lists per query block were asked for: queries of one, and how many there are in the one
  // sequence of the call.
  uint32_t query_block = 0, n_query_blocks = 1;
};
// candidates: per sequence. Empty: the lists are valid; otherwise what is wrong with them.
std::string check_selection(const kvasir_selection& selection, const CheckContext& context,
                            const std::vector<const Candidates*>& candidates);
// What the lists of sequence `seq` of a checked selection choose: per kv head, or once for all
// heads; with lists per query block, those of block `query_block` of n_query_blocks. Lists of query
// heads are united per kv head, where weight -inf says that a query head did not choose an index.
// width: weights per index. fallback: whether one of the lists asks for dense attention.
std::vector<HeadSelection> heads_of(const kvasir_selection& selection, uint32_t seq,
                                    uint32_t n_q_heads, uint32_t n_kv_heads,
                                    const Candidates& candidates, uint32_t* width, bool* fallback,
                                    uint32_t query_block = 0, uint32_t n_query_blocks = 1);

}  // namespace kvasir
