// Index lists; see index_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/index_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/select/ascending.h"

namespace kvasir {

void ListBuffer::prepare(uint32_t unit, uint32_t scope, uint32_t action, uint32_t max_lists,
                         uint64_t capacity, uint32_t group_size, bool weights_allowed) {
  // What the selector is to write stands for nothing valid until it does.
  offsets.assign(max_lists + 1, UINT64_MAX);
  flags.assign(max_lists, 0);
  index.assign(std::max<uint64_t>(capacity, 1), UINT32_MAX);
  const uint64_t n_weights = index.size() * group_size;
  if (weights_allowed)
    weight.assign(n_weights, std::numeric_limits<float>::quiet_NaN());
  else if (weight.size() < n_weights)
    weight.resize(n_weights);
  o.clear();
  lse.clear();
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

uint32_t heads_in_scope(uint32_t scope, uint32_t n_q_heads, uint32_t n_kv_heads) {
  return scope == KVASIR_SCOPE_SEQUENCE  ? 1
         : scope == KVASIR_SCOPE_KV_HEAD ? n_kv_heads
                                         : n_q_heads;
}

namespace {

// An ascending list that is asked for ascending units: one walk along it, however many there are.
class Reachable {
 public:
  explicit Reachable(const std::vector<uint32_t>& index)
      : at_(index.data()), end_(index.data() + index.size()) {}
  bool has(uint32_t unit) {
    at_ = advance_to(at_, end_, unit);
    return at_ != end_ && *at_ == unit;
  }

 private:
  const uint32_t* at_;
  const uint32_t* end_;
};

std::string check_list(const kvasir_selection& s, uint32_t list, uint64_t max_units,
                       const Candidates& candidates, uint32_t kv_head, uint32_t n_kv_heads) {
  const uint64_t begin = s.list_offsets[list], end = s.list_offsets[list + 1];
  const std::string where = "list " + std::to_string(list) + ": ";
  if (s.list_flags[list] > KVASIR_LIST_FALLBACK)
    return where + "unknown list flag " + std::to_string(s.list_flags[list]);
  if (s.list_flags[list] != KVASIR_LIST_LISTED)
    return begin == end ? "" : where + "lists indices although its flag says ALL, NONE or FALLBACK";
  if (end - begin > max_units)
    return where + std::to_string(end - begin) + " indices exceed max_units " +
           std::to_string(max_units);
  std::vector<Reachable> reachable;  // a list for all heads may name what is live for any head
  if (candidates.listed) {
    const bool shared = s.scope == KVASIR_SCOPE_SEQUENCE;
    for (uint32_t head = shared ? 0 : kv_head; head < (shared ? n_kv_heads : kv_head + 1); ++head)
      reachable.emplace_back(candidates.heads[head].index);
  }
  for (uint64_t i = begin; i < end; ++i) {
    const uint32_t u = s.index[i];
    if (u < candidates.begin || u >= candidates.end)
      return where + "index " + std::to_string(u) + " lies outside the candidate range [" +
             std::to_string(candidates.begin) + ", " + std::to_string(candidates.end) + ")";
    if (i > begin && u <= s.index[i - 1])
      return where + "indices are not ascending and unique at " + std::to_string(u);
    if (!candidates.listed) continue;
    const auto has = [u](Reachable& head) { return head.has(u); };
    if (std::none_of(reachable.begin(), reachable.end(), has))
      return where + "index " + std::to_string(u) + " is not among the candidates";
  }
  return "";
}

// What one query head of a group chose, for unite().
struct QueryHeadList {
  std::vector<uint32_t> all;  // where the list says ALL: the candidates
  const uint32_t* at = nullptr;
  const uint32_t* end = nullptr;
  const float* weight = nullptr;  // of *at; null: 0
};

QueryHeadList query_head_list(const kvasir_selection& s, uint32_t list,
                              const Candidates& candidates, uint32_t kv_head) {
  QueryHeadList out;
  if (s.list_flags[list] == KVASIR_LIST_ALL) {
    out.all = candidates.units_of(kv_head);
    out.at = out.all.data();
    out.end = out.at + out.all.size();
  } else {
    out.at = s.index + s.list_offsets[list];
    out.end = s.index + s.list_offsets[list + 1];
    if (s.list_flags[list] == KVASIR_LIST_LISTED && s.weight_width)
      out.weight = s.log_weight + s.list_offsets[list] * s.weight_width;
  }
  return out;
}

// Union of the group's lists, with one weight per query head; -inf: that head did not choose it.
// The lists stand `stride` apart.
HeadSelection unite(const kvasir_selection& s, uint32_t first_list, uint32_t stride,
                    uint32_t group_size, const Candidates& candidates, uint32_t kv_head) {
  constexpr float kNot = -std::numeric_limits<float>::infinity();
  std::vector<QueryHeadList> lists;
  lists.reserve(group_size);
  for (uint32_t g = 0; g < group_size; ++g)
    lists.push_back(query_head_list(s, first_list + g * stride, candidates, kv_head));
  UnitSet all(candidates.begin, candidates.end);
  for (const QueryHeadList& list : lists) all.add({list.at, list.end});
  HeadSelection out;
  out.index = all.units();
  out.weight.assign(out.index.size() * group_size, kNot);
  for (uint32_t g = 0; g < group_size; ++g) {
    const float* weight = lists[g].weight;
    for (const uint32_t* at = lists[g].at; at != lists[g].end; ++at) {
      out.weight[all.place(*at) * group_size + g] = weight ? *weight : 0.0f;
      if (weight) weight += s.weight_width;
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
  const uint32_t n_blocks = s.query_block ? c.n_query_blocks : 1;
  if (s.n_lists != c.n_seqs * heads * n_blocks)
    return "returned " + std::to_string(s.n_lists) + " lists, expected " +
           std::to_string(c.n_seqs * heads * n_blocks) + " (" + std::to_string(c.n_seqs) +
           " sequences x " + std::to_string(heads) + " heads" +
           (s.query_block ? " x " + std::to_string(n_blocks) + " query blocks)" : ")");
  if (s.flags & KVASIR_SELECTION_CONTRIBUTES && !c.contribution_allowed)
    return "contributes where that was not asked for (KVASIR_NEED_CONTRIBUTION, in select() only)";
  const uint32_t group = c.n_q_heads / c.n_kv_heads;
  if (s.weight_width != 0 && !c.weights_allowed)
    return "returned weights without declaring KVASIR_NEED_LOG_WEIGHT";
  if (s.weight_width > 1 && s.weight_width != group)
    return "weight_width " + std::to_string(s.weight_width) + " is neither 0, 1 nor the group size";
  if (s.weight_width > 1 && s.scope == KVASIR_SCOPE_Q_HEAD)
    return "lists per query head take one weight per index";
  if (s.list_offsets[0] != 0) return "list_offsets does not start at 0";
  for (uint32_t list = 0; list < s.n_lists; ++list)
    if (s.list_offsets[list + 1] < s.list_offsets[list] || s.list_offsets[list + 1] > s.capacity)
      return "list_offsets[" + std::to_string(list + 1) + "] is out of order or beyond capacity";
  for (uint32_t list = 0; list < s.n_lists; ++list) {
    const uint32_t head = list / n_blocks % heads;
    const uint32_t kv_head = s.scope == KVASIR_SCOPE_Q_HEAD ? head / group : head;
    std::string fault = check_list(s, list, c.max_units, *candidates[list / n_blocks / heads],
                                   kv_head, c.n_kv_heads);
    if (!fault.empty()) return fault;
  }
  const uint64_t n_weights = s.list_offsets[s.n_lists] * s.weight_width;
  for (uint64_t i = 0; i < n_weights; ++i)
    if (std::isnan(s.log_weight[i]) || s.log_weight[i] == std::numeric_limits<float>::infinity())
      return "log_weight[" + std::to_string(i) + "] is NaN or +inf";
  return "";
}

std::vector<HeadSelection> heads_of(const kvasir_selection& s, uint32_t seq, uint32_t n_q_heads,
                                    uint32_t n_kv_heads, const Candidates& candidates,
                                    uint32_t* width, bool* fallback, uint32_t query_block,
                                    uint32_t n_query_blocks) {
  const uint32_t group = n_q_heads / n_kv_heads;
  const uint32_t heads = heads_in_scope(s.scope, n_q_heads, n_kv_heads);
  const auto list_of = [&](uint32_t head) {
    return (seq * heads + head) * n_query_blocks + query_block;
  };
  *fallback = false;
  for (uint32_t head = 0; head < heads; ++head)
    *fallback = *fallback || s.list_flags[list_of(head)] == KVASIR_LIST_FALLBACK;
  std::vector<HeadSelection> out;
  if (s.scope == KVASIR_SCOPE_Q_HEAD) {
    *width = group;
    for (uint32_t head = 0; head < n_kv_heads; ++head)
      out.push_back(unite(s, list_of(head * group), n_query_blocks, group, candidates, head));
    return out;
  }
  *width = s.weight_width;
  for (uint32_t head = 0; head < heads; ++head) {
    const uint32_t list = list_of(head);
    HeadSelection selection;
    selection.all = s.list_flags[list] == KVASIR_LIST_ALL;
    selection.index.assign(s.index + s.list_offsets[list], s.index + s.list_offsets[list + 1]);
    if (s.weight_width)
      selection.weight.assign(s.log_weight + s.list_offsets[list] * s.weight_width,
                              s.log_weight + s.list_offsets[list + 1] * s.weight_width);
    out.push_back(std::move(selection));
  }
  return out;
}

}  // namespace kvasir
