// See attention_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace kvasir::cuda {

uint64_t partial_bytes_per_unit(const AttentionShape& shape) {
  const uint64_t group = shape.n_q_heads / shape.n_kv_heads;
  return group * (uint64_t{shape.v_dim} + 1) * sizeof(float);
}

uint64_t n_slots_of(const AttentionShape& shape, const AttentionRange& range, bool by_token) {
  return (range.item_end - range.item_begin) * (by_token ? 1 : shape.block_size);
}

uint64_t n_splits_of(const AttentionShape& shape, const AttentionRange& range, bool by_token) {
  return (n_slots_of(shape, range, by_token) + kSplitSlots - 1) / kSplitSlots;
}

uint64_t n_units_of(const AttentionShape& shape, const AttentionRange& range, bool by_token) {
  return range.is_prefill ? 1 : n_splits_of(shape, range, by_token);
}

namespace {

// Later queries see more keys: their tiles go first, so that none is left alone at the end.
void add_tiles(const AttentionShape& shape, AttentionUnits& out) {
  for (size_t i = out.n_ranges; i < out.ranges.size(); ++i)
    for (uint32_t q = 0; q < out.ranges[i].n_q; q += prefill_queries(shape))
      out.tiles.push_back({static_cast<uint32_t>(i), q});
  std::stable_sort(
      out.tiles.begin(), out.tiles.end(),
      [](const PrefillTile& a, const PrefillTile& b) { return a.first_query > b.first_query; });
}

// A range of the launch, behind those that it has.
void add_range(const AttentionRange& range, AttentionUnits& out) {
  AttentionRange& added = out.ranges.emplace_back(range);
  added.first_block = range.is_prefill ? out.n_prefill_blocks : out.n_blocks;
  const uint64_t n_splits = (range.slot_end - range.slot_begin + kSplitSlots - 1) / kSplitSlots;
  if (range.is_prefill) {
    out.n_prefill_blocks += range.n_q;
  } else {
    ++out.n_ranges;
    out.n_blocks += range.n_q * n_splits;
  }
}

void clear(AttentionUnits& out) {
  out.ranges.clear();
  out.tiles.clear();
  out.n_ranges = 0;
  out.n_units = out.n_blocks = out.n_prefill_blocks = 0;
}

}  // namespace

void plan_units(const AttentionShape& shape, std::span<const AttentionRange> ranges,
                const std::vector<bool>& by_token, uint32_t query_begin, uint32_t query_end,
                AttentionUnits& out) {
  clear(out);
  const uint64_t heads = shape.n_kv_heads;
  std::vector<uint64_t> counts((query_end - query_begin) * heads, 0);  // spans of each pair
  const auto pair_of = [&](uint64_t query, uint32_t kv_head) {
    return (query - query_begin) * heads + kv_head;
  };
  for (const uint32_t is_prefill : {0u, 1u}) {
    for (const AttentionRange& whole : ranges) {
      if (whole.is_prefill != is_prefill) continue;
      AttentionRange range = whole;
      range.q_begin = std::max(whole.q_begin, query_begin);
      const uint32_t end = std::min(whole.q_begin + whole.n_q, query_end);
      if (range.q_begin >= end) continue;
      range.n_q = end - range.q_begin;
      range.n_splits = n_units_of(shape, range, by_token[range.part]);
      range.first_unit = out.n_units;
      out.n_units += range.n_q * range.n_splits;
      range.slot_end = n_slots_of(shape, range, by_token[range.part]);
      for (uint32_t q = range.q_begin; q < end; ++q) ++counts[pair_of(q, range.kv_head)];
      add_range(range, out);
    }
  }
  add_tiles(shape, out);
  out.pairs.clear();
  std::vector<uint64_t> next(counts.size(), 0);  // where the pair's next span goes
  uint64_t n_spans = 0;
  for (uint64_t i = 0; i < counts.size(); ++i) {
    next[i] = n_spans;
    if (counts[i] == 0) continue;
    out.pairs.push_back({query_begin + static_cast<uint32_t>(i / heads),
                         static_cast<uint32_t>(i % heads), n_spans, n_spans + counts[i]});
    n_spans += counts[i];
  }
  out.spans.resize(n_spans);
  for (const AttentionRange& range : out.ranges) {
    for (uint32_t i = 0; i < range.n_q; ++i) {
      out.spans[next[pair_of(range.q_begin + i, range.kv_head)]++] = {
          range.first_unit + i * range.n_splits, range.n_splits};
    }
  }
}

void cut_units(const AttentionShape& shape, const AttentionUnits& whole,
               std::span<const uint32_t> chosen, uint64_t slot_begin, uint64_t slot_end,
               AttentionUnits& out) {
  clear(out);
  for (const uint32_t i : chosen) {
    AttentionRange range = whole.ranges[i];
    if (slot_begin != 0 && slot_begin >= range.slot_end) continue;
    range.slot_begin = slot_begin;
    range.slot_end = std::min(range.slot_end, slot_end);
    add_range(range, out);
  }
  add_tiles(shape, out);
}

void describe_units(const AttentionUnits& units, AttentionCall& call) {
  call.n_ranges = units.n_ranges;
  call.n_prefill_ranges = static_cast<uint32_t>(units.ranges.size()) - units.n_ranges;
  call.n_pairs = static_cast<uint32_t>(units.pairs.size());
  call.n_tiles = static_cast<uint32_t>(units.tiles.size());
  call.n_blocks = units.n_blocks;
  call.n_prefill_blocks = units.n_prefill_blocks;
}

}  // namespace kvasir::cuda
