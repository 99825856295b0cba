// What the parts of a pass need of the blocks of its layer, of all its sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/runtime/blocks/block.h"
#include "core/runtime/blocks/needed_tokens.h"
#include "core/runtime/sequence/sequence.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class LayerNeeds {
 public:
  explicit LayerNeeds(const RunContext& context) : c_(context) {}

  // Nothing of the layer is packed.
  void add_all(LayerState& layer);
  void add_block(LayerState& layer, uint32_t kv_head, uint32_t block);
  // A token, by its item; see Part.
  void add_item(LayerState& layer, uint32_t kv_head, uint32_t item);
  // One entry per list; this is empty afterwards.
  std::vector<ListNeeds> take();

 private:
  struct OfList {
    BlockList* list;
    NeededTokens tokens;
    bool all = false;
  };
  OfList& of(BlockList& list, uint32_t n_heads);

  const RunContext& c_;
  std::vector<OfList> lists_;
  size_t last_ = 0;  // the list asked for last: the next is mostly the same
};

}  // namespace kvasir
