// What the parts of a pass need of the blocks of its layer, of all its sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/runtime/attend/part.h"
#include "core/runtime/blocks/block.h"
#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class LayerNeeds {
 public:
  explicit LayerNeeds(const RunContext& context) : c_(context) {}

  // What the part needs, which is of this layer.
  void add(LayerState& layer, const Part& part);
  // One entry per list; this is empty afterwards.
  std::vector<ListNeeds> take();

 private:
  struct OfList {
    BlockList* list;
    NeededTokens tokens;
    bool all = false;
  };
  // n_heads: that its blocks hold.
  OfList& of(BlockList& list, uint32_t n_heads);
  void add_tokens(LayerState& layer, const Part& part, const kvasir_attn_range& range);

  const RunContext& c_;
  std::deque<OfList> lists_;
};

}  // namespace kvasir
