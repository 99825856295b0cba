// Forced ranges and candidates; see candidates.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/candidates.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvasir {

ForcedRange forced_range(const CacheConfig& cache, uint32_t unit, uint32_t n, uint32_t prompt_end) {
  const uint32_t window = cache.window_tokens.value;
  uint32_t begin = 0;
  if (cache.window_mode.value == WindowMode::kPrompt) {
    const uint32_t base = std::min(n, prompt_end);
    begin = base > window ? base - window : 0;
    const uint32_t flush = cache.window_flush_tokens.value;
    if (flush && n > prompt_end) begin += (n - prompt_end) / flush * flush;
  } else {
    begin = n > window ? n - window : 0;
  }
  if (n > 0) begin = std::min(begin, n - 1);
  uint32_t sink = cache.sink_tokens.value;
  if (unit == KVASIR_UNIT_BLOCK) {
    const uint32_t b = cache.block_size.value;
    begin = begin / b * b;
    sink = static_cast<uint32_t>(std::min<uint64_t>(begin, (uint64_t{sink} + b - 1) / b * b));
  }
  return {std::min(sink, begin), begin};
}

uint64_t Candidates::max_count() const {
  uint64_t most = 0;
  if (!listed) return end - begin;
  for (const auto& head : heads) most = std::max<uint64_t>(most, head.index.size());
  return most;
}

std::vector<uint32_t> Candidates::units_of(uint32_t kv_head) const {
  if (listed) return heads[kv_head].index;
  std::vector<uint32_t> units(end - begin);
  std::iota(units.begin(), units.end(), begin);
  return units;
}

Candidates live_candidates(const LayerState& layer, uint32_t unit, const ForcedRange& forced,
                           uint32_t block_size, uint32_t n_kv_heads) {
  Candidates out;
  out.unit = unit;
  const uint32_t step = unit == KVASIR_UNIT_BLOCK ? block_size : 1;
  out.begin = forced.sink_end / step;
  out.end = std::max(out.begin, forced.window_begin / step);
  out.listed = !layer.dead.empty() || !layer.restricted.empty();
  if (!out.listed) return out;
  out.heads.resize(n_kv_heads);
  // Walks what is left, not the whole context: a step costs what it attends to.
  const uint32_t unit_tokens = layer.restricted_unit == KVASIR_UNIT_BLOCK ? block_size : 1;
  const uint32_t end = out.end * step;
  for (uint32_t head = 0; head < n_kv_heads; ++head) {
    std::vector<uint32_t>& index = out.heads[head].index;
    const auto add = [&](uint32_t token) {
      const uint32_t u = token / step;
      if (u >= out.begin && u < out.end && (index.empty() || index.back() != u)) index.push_back(u);
    };
    const auto add_living = [&](uint32_t begin_token, uint32_t end_token) {
      for (uint32_t t = begin_token; t < end_token; ++t)
        if (layer.dead.empty() || t >= layer.dead[head].size() || !layer.dead[head][t]) add(t);
    };
    if (!layer.restricted.empty()) {
      for (const uint32_t u : layer.restricted[head])
        add_living(u * unit_tokens, std::min(end, (u + 1) * unit_tokens));
      add_living(layer.restricted_end * unit_tokens, end);
    } else if (step == 1) {
      const auto& live = layer.live[head];
      index.assign(std::lower_bound(live.begin(), live.end(), out.begin),
                   std::lower_bound(live.begin(), live.end(), out.end));
      for (uint32_t t = std::max(out.begin, static_cast<uint32_t>(layer.dead[head].size()));
           t < end; ++t)
        index.push_back(t);
    } else {
      for (const uint32_t t : layer.live[head]) add(t);
      add_living(static_cast<uint32_t>(layer.dead[head].size()), end);
    }
  }
  return out;
}

void share_candidates(Candidates& candidates) {
  const auto is_first = [&](const HeadSelection& head) {
    return head.index == candidates.heads.front().index;
  };
  if (std::all_of(candidates.heads.begin(), candidates.heads.end(), is_first)) return;
  std::vector<uint32_t> all;
  for (const HeadSelection& head : candidates.heads)
    all.insert(all.end(), head.index.begin(), head.index.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (HeadSelection& head : candidates.heads) head.index = all;
}

Candidates expand_to_tokens(const Candidates& blocks, uint32_t block_size) {
  Candidates out;
  out.unit = KVASIR_UNIT_TOKEN;
  out.begin = blocks.begin * block_size;
  out.end = blocks.end * block_size;
  out.listed = blocks.listed;
  for (const auto& head : blocks.heads) {
    HeadSelection tokens;
    const size_t width = head.index.empty() ? 0 : head.weight.size() / head.index.size();
    tokens.index.resize(head.index.size() * block_size);
    tokens.weight.reserve(head.weight.size() * block_size);
    uint32_t* to = tokens.index.data();
    for (size_t i = 0; i < head.index.size(); ++i) {
      const uint32_t first = head.index[i] * block_size;
      for (uint32_t t = 0; t < block_size; ++t) *to++ = first + t;
      const auto weights = head.weight.begin() + static_cast<ptrdiff_t>(i * width);
      for (uint32_t t = 0; t < block_size && width > 0; ++t)
        tokens.weight.insert(tokens.weight.end(), weights, weights + static_cast<ptrdiff_t>(width));
    }
    out.heads.push_back(std::move(tokens));
  }
  return out;
}

}  // namespace kvasir
