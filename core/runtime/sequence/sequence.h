// What the core keeps per sequence: blocks, leases, evictions, restrictions, earlier selections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/runtime/blocks/block.h"
#include "core/runtime/sequence/content_hash.h"
#include "core/runtime/sequence/slab.h"

namespace kvasir {

// What one kv head attends to beyond sinks and window.
struct HeadSelection {
  bool all = false;             // every live candidate
  std::vector<uint32_t> index;  // logical units, ascending
  std::vector<float> weight;    // [index.size()][width], or empty
};

// A selection of one layer, kept while token_step, layer_step or the plugin allows it.
struct LayerSelection {
  bool valid = false;
  bool dense = false;        // attend everything that is live
  bool unchosen = false;     // no selector was asked: everything that is reachable
  bool contributed = false;  // part of the attention came with it: holds for one step
  bool speculated = false;   // FINAL from speculate(): holds for the step it was made in
  uint32_t unit = KVASIR_UNIT_BLOCK;
  uint32_t width = 0;  // weights per index
  // Tokens; kept with the selection, so that no token lies between its candidates and the window.
  uint32_t sink_end = 0;
  uint32_t window_begin = 0;
  uint32_t reuse_steps = 0;          // steps after its own that the selector lets it hold
  uint32_t made_at = 0;              // decode index
  std::vector<HeadSelection> heads;  // [n_kv_heads], or [1] for all heads
  // Not empty: all lists were ALL or NONE. That holds for new candidates as well, so the window
  // moves on while the selection is reused.
  std::vector<HeadSelection> standing;
  // Not empty: between choosing and attending, what `heads` say are placeholders, as many as there
  // are indices. They are on the device, those of kv head h from place there[h] on.
  std::vector<uint64_t> there;
  static LayerSelection everything() {
    LayerSelection all;
    all.valid = all.dense = true;
    return all;
  }
  const HeadSelection& head(uint32_t kv_head) const {
    return heads.size() == 1 ? heads[0] : heads[kv_head];
  }
};

// The tokens of one kv head that were not evicted, in order of position, without gaps, in blocks of
// that head alone. The slot of a token is its index among them.
struct PackedHead : BlockList {
  std::shared_ptr<const std::vector<uint32_t>> live;  // slot -> position; leases point to it
};

// What is left below `end` after tokens there were evicted and their memory was freed.
struct PackedTokens {
  uint32_t end = 0;               // tokens; a multiple of block_size, 0 = nothing is packed
  std::vector<PackedHead> heads;  // [n_kv_heads], or empty
};

// What a sequence has of one layer. Block i holds positions from i * block_size on; those below
// packed.end are null.
struct LayerState : BlockList {
  PackedTokens packed;
  std::vector<std::vector<bool>> dead;            // [kv_head][token] evicted; empty: none is
  std::vector<std::vector<uint32_t>> live;        // [kv_head] those of `dead` that are not evicted
  std::vector<std::vector<uint32_t>> restricted;  // [kv_head] reachable units; empty: all
  uint32_t restricted_unit = KVASIR_UNIT_BLOCK;
  uint32_t restricted_end = 0;  // units from here on did not exist when the restriction was made
  LayerSelection selection;
  std::vector<LayerSelection> drafted;  // `selection` after each token that is to be verified
  uint32_t final_blocks = 0;            // blocks [0, n) were reported FINAL and not cut since
  uint32_t context_blocks = 0;          // hybrid mode: none of [0, n) is in the window's storage
  std::vector<SlabPages> slabs;         // [slab owner]
};

struct Sequence {
  uint64_t id = 0;
  uint32_t strategy = 0;                      // its index in the engine
  uint32_t kv_len = 0;                        // tokens with K and V
  uint32_t prompt_begin = 0, prompt_end = 0;  // prompt_end > kv_len: not all of it is read yet
  uint32_t decode_index = 0;                  // tokens decoded since the prompt's end
  std::vector<int32_t> tokens;
  ContentHash content;  // names of its full blocks
  // The sequence with which it shared the steps of its prompt up to token led_to; its open block
  // there was a copy of that sequence's.
  uint64_t led_by = 0;
  uint32_t led_to = 0;
  std::vector<LayerState> layers;
  // Names of its blocks, while it is restored a layer at a time. Layers without blocks are missing.
  std::vector<Hash128> awaited;
  // Why a step failed in its middle. Layers may hold different numbers of tokens then: the sequence
  // can only be closed.
  std::exception_ptr fault;

  bool reads_prompt() const { return kv_len < prompt_end; }
  void fail(std::exception_ptr why) {
    if (!fault) fault = std::move(why);
  }
};

}  // namespace kvasir
