// On which memory nodes the pages of a block in memory belong: those whose workers read its heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/shared/kv_layout.h"
#include "plugins/shared/memory_node.h"
#include "plugins/shared/placement.h"

namespace kvasir::tiered {

class BlockPlaces {
 public:
  BlockPlaces() = default;  // on no node in particular
  // Of blocks of heads [first_head, first_head + n_heads), in one part. A page that heads of
  // several nodes share belongs to the head with the most bytes of it.
  BlockPlaces(const sdk::HeadPlacement& placement, const sdk::KvLayout& layout, uint32_t first_head,
              uint32_t n_heads);
  // Empty, or what the system refused first. block: a multiple of the page size.
  std::string place(std::byte* block, sdk::Touched touched) const;

 private:
  struct Range {
    uint64_t begin, end;
    sdk::Nodes nodes;
  };
  std::vector<Range> ranges_;
};

}  // namespace kvasir::tiered
