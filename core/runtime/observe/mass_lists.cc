// Sums of attention mass; see mass_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/mass_lists.h"

#include <algorithm>
#include <span>

namespace kvasir {
namespace {

// Query heads [begin, end) of each group.
struct Members {
  uint32_t begin, end;
};

float sum_of(const HeadMass& head, size_t i, const Members& members, uint32_t group_size) {
  float sum = 0.0f;
  for (uint32_t g = members.begin; g < members.end; ++g) sum += head.value[i * group_size + g];
  return sum;
}

// One list over all `heads`, summed over the members of each head's group: of a unit the first
// head's keys, then the next one's. A walk along all heads at once, as their positions ascend.
void add_list(std::span<const HeadMass> heads, const Members& members, uint32_t group_size,
              uint32_t unit_tokens, MassLists& out) {
  std::vector<size_t> at(heads.size());
  const auto unit_at = [&](size_t head) {
    return at[head] < heads[head].pos.size() ? heads[head].pos[at[head]] / unit_tokens : UINT32_MAX;
  };
  while (true) {
    uint32_t unit = UINT32_MAX;
    for (size_t head = 0; head < heads.size(); ++head) unit = std::min(unit, unit_at(head));
    if (unit == UINT32_MAX) break;
    bool is_first = true;
    for (size_t head = 0; head < heads.size(); ++head)
      for (; unit_at(head) == unit; ++at[head]) {
        const float sum = sum_of(heads[head], at[head], members, group_size);
        if (is_first) {
          out.index.push_back(unit);
          out.value.push_back(sum);
        } else {
          out.value.back() += sum;
        }
        is_first = false;
      }
  }
  out.offsets.push_back(out.index.size());
}

}  // namespace

MassLists mass_lists(const std::vector<std::vector<HeadMass>>& mass, const SelectorLimits& limits,
                     uint32_t group_size, uint32_t block_size) {
  MassLists out;
  const bool in_blocks = limits.mass_level == KVASIR_MASS_BLOCK && block_size > 1;
  const uint32_t per = in_blocks ? block_size : 1;
  out.unit = in_blocks ? KVASIR_UNIT_BLOCK : KVASIR_UNIT_TOKEN;
  const bool apart = limits.mass_reduce == KVASIR_MASS_PER_Q_HEAD;
  for (const std::vector<HeadMass>& heads : mass) {
    if (limits.mass_reduce == KVASIR_MASS_SUM_ALL) {
      add_list(heads, {0, group_size}, group_size, per, out);
      continue;
    }
    for (const HeadMass& head : heads)
      for (uint32_t g = 0; g < (apart ? group_size : 1); ++g)
        add_list({&head, 1}, {apart ? g : 0, apart ? g + 1 : group_size}, group_size, per, out);
  }
  return out;
}

}  // namespace kvasir
