// Row lists; see rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/index_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/runtime/blocks/memory_bridge.h"

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

void ListBuffer::prepare(uint32_t unit, uint32_t scope, uint32_t action, uint32_t max_lists,
                         uint64_t capacity, uint32_t group_size) {
  offsets.assign(max_lists + 1, 0);
  flags.assign(max_lists, 0);
  index.resize(std::max<uint64_t>(capacity, 1));
  weight.resize(index.size() * group_size);
  view = {};
  view.struct_size = sizeof(view);
  view.unit = unit;
  view.scope = scope;
  view.action = action;
  reclaim();
}

void ListBuffer::offer_contribution(uint64_t n_queries, uint32_t n_q_heads, uint32_t v_dim) {
  o.assign(n_queries * n_q_heads * v_dim, 0.0f);
  lse.assign(n_queries * n_q_heads, -std::numeric_limits<float>::infinity());
  n_q_heads_ = n_q_heads;
  v_dim_ = v_dim;
  reclaim();
}

void ListBuffer::reclaim() {
  view.capacity = index.size();
  view.list_offsets = offsets.data();
  view.list_flags = flags.data();
  view.index = index.data();
  view.log_weight = weight.data();
  view.o = view.lse = {};
  if (lse.empty()) return;
  view.o = host_view(o.data(), KVASIR_DTYPE_F32, {lse.size() / n_q_heads_, n_q_heads_, v_dim_});
  view.lse = host_view(lse.data(), KVASIR_DTYPE_F32, {lse.size() / n_q_heads_, n_q_heads_});
}

uint64_t Candidates::max_count() const {
  uint64_t most = 0;
  if (!listed) return end - begin;
  for (const auto& head : heads) most = std::max<uint64_t>(most, head.index.size());
  return most;
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
    } else {
      for (const uint32_t t : layer.live[head]) add(t);
      add_living(static_cast<uint32_t>(layer.dead[head].size()), end);
    }
  }
  return out;
}

void share_candidates(Candidates& candidates) {
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
    for (const uint32_t block : head.index)
      for (uint32_t t = 0; t < block_size; ++t) tokens.index.push_back(block * block_size + t);
    out.heads.push_back(std::move(tokens));
  }
  return out;
}

namespace {

uint32_t heads_in_scope(uint32_t scope, uint32_t n_q_heads, uint32_t n_kv_heads) {
  return scope == KVASIR_SCOPE_SEQUENCE  ? 1
         : scope == KVASIR_SCOPE_KV_HEAD ? n_kv_heads
                                         : n_q_heads;
}

std::string check_list(const kvasir_selection& s, uint32_t row, uint64_t max_units,
                       const Candidates& candidates, uint32_t kv_head, uint32_t n_kv_heads) {
  const uint64_t begin = s.list_offsets[row], end = s.list_offsets[row + 1];
  const std::string where = "row " + std::to_string(row) + ": ";
  if (s.list_flags[row] > KVASIR_LIST_FALLBACK)
    return where + "unknown row flag " + std::to_string(s.list_flags[row]);
  if (s.list_flags[row] != KVASIR_LIST_LISTED)
    return begin == end ? "" : where + "lists indices although its flag says ALL, NONE or FALLBACK";
  if (end - begin > max_units)
    return where + std::to_string(end - begin) + " indices exceed max_units " +
           std::to_string(max_units);
  const bool shared = s.scope == KVASIR_SCOPE_SEQUENCE;
  for (uint64_t i = begin; i < end; ++i) {
    const uint32_t u = s.index[i];
    if (u < candidates.begin || u >= candidates.end)
      return where + "index " + std::to_string(u) + " lies outside the candidate range [" +
             std::to_string(candidates.begin) + ", " + std::to_string(candidates.end) + ")";
    if (i > begin && u <= s.index[i - 1])
      return where + "indices are not ascending and unique at " + std::to_string(u);
    if (!candidates.listed) continue;
    bool found = false;  // a shared row may name what is live for any head
    for (uint32_t head = shared ? 0 : kv_head; head < (shared ? n_kv_heads : kv_head + 1); ++head) {
      const auto& list = candidates.heads[head].index;
      found = found || std::binary_search(list.begin(), list.end(), u);
    }
    if (!found) return where + "index " + std::to_string(u) + " is not among the candidates";
  }
  return "";
}

// Union of the group's rows, with one weight per query head; -inf: that head did not choose it.
// The rows stand `stride` apart.
HeadSelection unite(const kvasir_selection& s, uint32_t first_row, uint32_t stride,
                    uint32_t group_size, const Candidates& candidates, uint32_t kv_head) {
  constexpr float kNot = -std::numeric_limits<float>::infinity();
  HeadSelection out;
  std::vector<uint64_t> at(group_size), end(group_size);
  std::vector<std::vector<uint32_t>> all(group_size);
  std::vector<const uint32_t*> list(group_size);
  for (uint32_t g = 0; g < group_size; ++g) {
    const uint32_t row = first_row + g * stride;
    if (s.list_flags[row] == KVASIR_LIST_ALL) {
      if (candidates.listed) {
        all[g] = candidates.heads[kv_head].index;
      } else {
        for (uint32_t u = candidates.begin; u < candidates.end; ++u) all[g].push_back(u);
      }
      list[g] = all[g].data();
      end[g] = all[g].size();
    } else {
      list[g] = s.index + s.list_offsets[row];
      end[g] = s.list_offsets[row + 1] - s.list_offsets[row];
    }
  }
  while (true) {
    uint32_t next = UINT32_MAX;
    for (uint32_t g = 0; g < group_size; ++g)
      if (at[g] < end[g]) next = std::min(next, list[g][at[g]]);
    if (next == UINT32_MAX) break;
    out.index.push_back(next);
    for (uint32_t g = 0; g < group_size; ++g) {
      float weight = kNot;
      if (at[g] < end[g] && list[g][at[g]] == next) {
        const uint64_t item = s.list_offsets[first_row + g * stride] + at[g];
        const bool listed = s.list_flags[first_row + g * stride] == KVASIR_LIST_LISTED;
        weight = listed && s.weight_width ? s.log_weight[item * s.weight_width] : 0.0f;
        ++at[g];
      }
      out.weight.push_back(weight);
    }
  }
  return out;
}

}  // namespace

std::string check_selection(const kvasir_selection& s, const CheckContext& c,
                            const std::vector<const Candidates*>& candidates) {
  if (s.scope > KVASIR_SCOPE_Q_HEAD || s.scope > c.finest_scope)
    return "scope " + std::to_string(s.scope) + " is finer than limits() declared";
  const uint32_t heads = heads_in_scope(s.scope, c.n_q_heads, c.n_kv_heads);
  if (s.query_block != 0 && s.query_block != c.query_block)
    return "query_block " + std::to_string(s.query_block) + " is neither 0 nor what was preset, " +
           std::to_string(c.query_block);
  const uint32_t lists = s.query_block ? c.n_query_blocks : 1;
  if (s.n_lists != c.n_seqs * heads * lists)
    return "returned " + std::to_string(s.n_lists) + " rows, expected " +
           std::to_string(c.n_seqs * heads * lists) + " (" + std::to_string(c.n_seqs) +
           " sequences x " + std::to_string(heads) + " heads" +
           (s.query_block ? " x " + std::to_string(lists) + " query blocks)" : ")");
  if (s.flags & KVASIR_SELECTION_CONTRIBUTES && !c.contribution_allowed)
    return "contributes where that was not asked for (KVASIR_NEED_CONTRIBUTION, in select() only)";
  const uint32_t group = c.n_q_heads / c.n_kv_heads;
  if (s.weight_width != 0 && !c.weights_allowed)
    return "returned weights without declaring KVASIR_NEED_LOG_WEIGHT";
  if (s.weight_width > 1 && s.weight_width != group)
    return "weight_width " + std::to_string(s.weight_width) + " is neither 0, 1 nor the group size";
  if (s.weight_width > 1 && s.scope == KVASIR_SCOPE_Q_HEAD)
    return "rows per query head take one weight per index";
  if (s.list_offsets[0] != 0) return "list_offsets does not start at 0";
  for (uint32_t row = 0; row < s.n_lists; ++row)
    if (s.list_offsets[row + 1] < s.list_offsets[row] || s.list_offsets[row + 1] > s.capacity)
      return "list_offsets[" + std::to_string(row + 1) + "] is out of order or beyond capacity";
  for (uint32_t row = 0; row < s.n_lists; ++row) {
    const uint32_t head = row / lists % heads;
    const uint32_t kv_head = s.scope == KVASIR_SCOPE_Q_HEAD ? head / group : head;
    std::string fault =
        check_list(s, row, c.max_units, *candidates[row / lists / heads], kv_head, c.n_kv_heads);
    if (!fault.empty()) return fault;
  }
  const uint64_t n_weights = s.list_offsets[s.n_lists] * s.weight_width;
  for (uint64_t i = 0; i < n_weights; ++i)
    if (std::isnan(s.log_weight[i]) || s.log_weight[i] == std::numeric_limits<float>::infinity())
      return "log_weight[" + std::to_string(i) + "] is NaN or +inf";
  return "";
}

std::vector<HeadSelection> heads_of(const kvasir_selection& s, uint32_t row, uint32_t n_q_heads,
                                    uint32_t n_kv_heads, const Candidates& candidates,
                                    uint32_t* width, bool* fallback, uint32_t query_block,
                                    uint32_t n_query_blocks) {
  const uint32_t group = n_q_heads / n_kv_heads;
  const uint32_t heads = heads_in_scope(s.scope, n_q_heads, n_kv_heads);
  const auto row_of = [&](uint32_t head) {
    return (row * heads + head) * n_query_blocks + query_block;
  };
  *fallback = false;
  for (uint32_t head = 0; head < heads; ++head)
    *fallback = *fallback || s.list_flags[row_of(head)] == KVASIR_LIST_FALLBACK;
  std::vector<HeadSelection> out;
  if (s.scope == KVASIR_SCOPE_Q_HEAD) {
    *width = group;
    for (uint32_t head = 0; head < n_kv_heads; ++head)
      out.push_back(unite(s, row_of(head * group), n_query_blocks, group, candidates, head));
    return out;
  }
  *width = s.weight_width;
  for (uint32_t head = 0; head < heads; ++head) {
    const uint32_t r = row_of(head);
    HeadSelection selection;
    selection.all = s.list_flags[r] == KVASIR_LIST_ALL;
    selection.index.assign(s.index + s.list_offsets[r], s.index + s.list_offsets[r + 1]);
    if (s.weight_width)
      selection.weight.assign(s.log_weight + s.list_offsets[r] * s.weight_width,
                              s.log_weight + s.list_offsets[r + 1] * s.weight_width);
    out.push_back(std::move(selection));
  }
  return out;
}

}  // namespace kvasir
