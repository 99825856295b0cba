// Cuts the ranges of a call into units and says which of them make a result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention_call.h"

namespace kvasir::cuda {

// Units of some queries. What a pair (query, kv head) is merged from and in which order depends on
// its own ranges alone.
struct AttentionUnits {
  std::vector<AttentionRange> ranges;  // of these queries; those of prompts last
  uint32_t n_ranges = 0;               // that are not of prompts
  std::vector<UnitSpan> spans;
  std::vector<AttentionPair> pairs;  // that some range names, by query, then kv head
  std::vector<PrefillTile> tiles;
  uint64_t n_units = 0, n_prefill_units = 0;

  uint64_t n_all_units() const { return n_units + n_prefill_units; }
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

// Splits of a range's slots, and its units per query: one split of all slots for a prompt.
uint64_t n_splits_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);
uint64_t n_units_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);

}  // namespace kvasir::cuda
