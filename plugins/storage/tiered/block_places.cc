// See block_places.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/block_places.h"

#include <algorithm>

#include "plugins/storage/tiered/block_memory.h"

namespace kvasir::tiered {

BlockPlaces::BlockPlaces(const sdk::HeadPlacement& placement, const sdk::KvLayout& layout,
                         uint32_t first_head, uint32_t n_heads) {
  if (placement.n_nodes() < 2) return;
  const auto overlap = [](uint64_t begin, uint64_t end, uint64_t from, uint64_t bytes) {
    const uint64_t low = std::max(begin, from), high = std::min(end, from + bytes);
    return high > low ? high - low : 0;
  };
  for (uint64_t begin = 0; begin < layout.block_bytes(); begin += kPage) {
    const uint64_t end = std::min(begin + kPage, layout.block_bytes());
    uint32_t owner = 0;
    uint64_t most = 0;
    for (uint32_t head = 0; head < n_heads; ++head) {
      const uint64_t k = layout.format.k_head_stride, v = layout.format.v_head_stride;
      const uint64_t bytes =
          overlap(begin, end, head * k, k) + overlap(begin, end, layout.k_bytes + head * v, v);
      if (bytes <= most) continue;
      most = bytes;
      owner = head;
    }
    sdk::Nodes nodes = placement.nodes_of(first_head + owner);
    if (!ranges_.empty() && ranges_.back().nodes == nodes)
      ranges_.back().end = end;
    else
      ranges_.push_back({begin, end, std::move(nodes)});
  }
}

std::string BlockPlaces::place(std::byte* block, sdk::Touched touched) const {
  std::string refusal;
  for (const Range& range : ranges_) {
    std::string why =
        sdk::prefer_nodes(block + range.begin, range.end - range.begin, range.nodes, touched);
    if (refusal.empty()) refusal = std::move(why);
  }
  return refusal;
}

}  // namespace kvasir::tiered
