// See device_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/device_lists.h"

#include <algorithm>

#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/select/scores.h"

namespace kvasir {
namespace {

// Who reads or wants more than scores, or chooses something else than whole blocks for each head.
bool chooses_by_scores_alone(const Selector& selector, const kvasir_geometry& g) {
  constexpr uint64_t kMore = KVASIR_NEED_KEYS | KVASIR_NEED_UNROTATED_K | KVASIR_NEED_CONTRIBUTION;
  const SelectorLimits& limits = selector.limits();
  return selector.desc().needs & KVASIR_NEED_SCORES && !(selector.desc().needs & kMore) &&
         !selector.gives_weights() && limits.unit == KVASIR_UNIT_BLOCK && limits.max_units != 0 &&
         heads_in_scope(limits.scope, g.n_q_heads, g.n_kv_heads) == g.n_kv_heads &&
         limits.plan_at == 0 && limits.mass_at == 0 && limits.pos_mode == KVASIR_POS_TRUE;
}

}  // namespace

bool lists_can_stay(const Pipeline& pipeline, const kvasir_geometry& geometry,
                    const std::vector<kvasir_kv_format>& formats) {
  if (pipeline.selectors.size() != 1 || !pipeline.representative || pipeline.is_hybrid() ||
      pipeline.reference)
    return false;
  const Storage& storage = *pipeline.storage;
  const Selector& selector = *pipeline.selectors[0];
  const bool are_there = std::all_of(formats.begin(), formats.end(), [](const auto& format) {
    return format.mem_kind == KVASIR_MEM_DEVICE;
  });
  return are_there && storage.stable_leases() && storage.has_device_memory() &&
         storage.heat_wanted() == KVASIR_HEAT_NONE && !selector.checks() &&
         pipeline.strategy.cache.positions.value != Positions::kSlot &&
         pipeline.strategy.cache.foresee.value != Foresee::kChoose &&
         geometry.k_state == KVASIR_K_ROTATED && scores_can_stay(pipeline, geometry) &&
         selector.reads(KVASIR_MEM_DEVICE) && chooses_by_scores_alone(selector, geometry) &&
         selector.leaves_lists() && pipeline.attention->reads_lists();
}

std::string check_lengths(const kvasir_selection& lists, uint64_t max_units, uint32_t n_kv_heads,
                          const std::vector<const Candidates*>& candidates) {
  if (lists.n_lists != candidates.size() * n_kv_heads)
    return "returned " + std::to_string(lists.n_lists) + " lists, expected " +
           std::to_string(candidates.size() * n_kv_heads);
  if (lists.list_offsets[0] != 0) return "list_offsets does not start at 0";
  for (uint32_t list = 0; list < lists.n_lists; ++list) {
    const uint64_t begin = lists.list_offsets[list], end = lists.list_offsets[list + 1];
    const std::string where = "list " + std::to_string(list) + ": ";
    if (end < begin || end > lists.capacity)
      return "list_offsets[" + std::to_string(list + 1) + "] is out of order or beyond capacity";
    if (lists.list_flags[list] != KVASIR_LIST_LISTED)
      return where + "flag " + std::to_string(lists.list_flags[list]) +
             ", and lists on the device are LISTED";
    const uint64_t most = std::min(max_units, candidates[list / n_kv_heads]->max_count());
    if (end - begin > most)
      return where + std::to_string(end - begin) + " indices, at most " + std::to_string(most) +
             " can be chosen";
  }
  return "";
}

ListBuffer lists_of(const ListBuffer& all, uint32_t seq, uint32_t n_kv_heads) {
  const uint64_t first = uint64_t{seq} * n_kv_heads, begin = all.offsets[first],
                 n = all.offsets[first + n_kv_heads] - begin;
  ListBuffer out;
  out.prepare(all.view.unit, all.view.scope, all.view.action, n_kv_heads, n, 1, false);
  for (uint32_t head = 0; head <= n_kv_heads; ++head)
    out.offsets[head] = all.offsets[first + head] - begin;
  std::copy_n(all.flags.begin() + static_cast<ptrdiff_t>(first), n_kv_heads, out.flags.begin());
  std::copy_n(all.index.begin() + static_cast<ptrdiff_t>(begin), n, out.index.begin());
  out.view.n_lists = n_kv_heads;
  out.view.reuse_steps = all.view.reuse_steps;
  return out;
}

}  // namespace kvasir
