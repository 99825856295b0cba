// Sums of attention mass; see mass_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/mass_lists.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvasir {
namespace {

// Query heads [begin, end) of each group.
struct Members {
  uint32_t begin, end;
};

// One list over all `heads`, summed over the members of each head's group.
void add_list(std::span<const HeadMass> heads, const Members& members, uint32_t group_size,
              uint32_t unit_tokens, MassLists& out) {
  std::vector<std::pair<uint32_t, float>> entries;
  for (const HeadMass& head : heads)
    for (size_t i = 0; i < head.pos.size(); ++i) {
      float sum = 0.0f;
      for (uint32_t g = members.begin; g < members.end; ++g) sum += head.value[i * group_size + g];
      entries.emplace_back(head.pos[i] / unit_tokens, sum);
    }
  if (heads.size() > 1)
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  const size_t start = out.index.size();
  for (const auto& [unit, sum] : entries) {
    if (out.index.size() > start && out.index.back() == unit) {
      out.value.back() += sum;
    } else {
      out.index.push_back(unit);
      out.value.push_back(sum);
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
