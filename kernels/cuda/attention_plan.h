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
  std::vector<AttentionRange> ranges;  // of these queries
  std::vector<UnitSpan> spans;
  std::vector<AttentionPair> pairs;  // that some range names, by query, then kv head
  uint64_t n_units = 0;
};

// Bytes of partial results per unit.
uint64_t partial_bytes_per_unit(const AttentionShape& shape);

// Of queries [query_begin, query_end) of `ranges`, whose first_unit and n_splits need no value.
// by_token: of each part. Throws nothing but bad_alloc; `out` keeps its memory from call to call.
void plan_units(const AttentionShape& shape, std::span<const AttentionRange> ranges,
                const std::vector<bool>& by_token, uint32_t query_begin, uint32_t query_end,
                AttentionUnits& out);

// Splits of a range.
uint64_t n_splits_of(const AttentionShape& shape, const AttentionRange& range, bool by_token);

}  // namespace kvasir::cuda
