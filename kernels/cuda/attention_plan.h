// Cuts the ranges of a call into units and says which of them make a result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention_call.h"

namespace kvasir::cuda {

// Units of some queries, and how one launch takes them. What a pair (query, kv head) is merged from
// and in which order depends on its own ranges alone.
struct AttentionUnits {
  std::vector<AttentionRange> ranges;  // of these queries; those of prompts last
  uint32_t n_ranges = 0;               // that are not of prompts
  std::vector<UnitSpan> spans;
  std::vector<AttentionPair> pairs;  // that some range names, by query, then kv head
  std::vector<PrefillTile> tiles;
  uint64_t n_units = 0;                         // for which there are partial results
  uint64_t n_blocks = 0, n_prefill_blocks = 0;  // of the launch
};

// The numbers of the call; addresses are the caller's business.
void describe_units(const AttentionUnits& units, AttentionCall& call);

// Bytes of partial results per unit.
uint64_t partial_bytes_per_unit(const AttentionShape& shape);

// Of queries [query_begin, query_end) of `ranges`, whose first_unit and n_splits need no value.
// by_token: of each part. Throws nothing but bad_alloc; `out` keeps its memory from call to call.
void plan_units(const AttentionShape& shape, std::span<const AttentionRange> ranges,
                const std::vector<bool>& by_token, uint32_t query_begin, uint32_t query_end,
                AttentionUnits& out);

// Slots [slot_begin, slot_end), multiples of kSplitSlots or beyond the end, of ranges[i] of `whole`
// for each i of `chosen`, ascending: a launch, whose partial results belong among those of `whole`.
// The first one of a range begins at 0.
void cut_units(const AttentionShape& shape, const AttentionUnits& whole,
               std::span<const uint32_t> chosen, uint64_t slot_begin, uint64_t slot_end,
               AttentionUnits& out);

// Slots of a range, their splits, and its units per query: one split of all slots for a prompt.
uint64_t n_slots_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);
uint64_t n_splits_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);
uint64_t n_units_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);

}  // namespace kvasir::cuda
