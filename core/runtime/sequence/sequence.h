// What the core keeps per sequence: blocks, leases, evictions, restrictions, earlier selections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/runtime/blocks/needed_block.h"
#include "core/runtime/sequence/content_hash.h"
#include "core/runtime/sequence/slab.h"

namespace kvasir {

class BlockStore;

// One block of one layer, all kv heads; forks share it, the last holder drops it from storage.
struct Block {
  kvasir_block_key key{};
  kvasir_lease lease{};
  bool sealed = false;
  BlockStore* store = nullptr;
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();
};

// What one kv head attends to beyond the forced parts.
struct HeadSelection {
  bool all = false;             // every live candidate
  std::vector<uint32_t> index;  // ascending, logical units
  std::vector<float> weight;    // [index][width] or empty
};

// A selection of one layer, kept while token_step, layer_step or the plugin allow.
struct LayerSelection {
  bool valid = false;
  bool dense = false;        // attend everything that is live
  bool unchosen = false;     // no selector was asked: all that is reachable
  bool contributed = false;  // part of the attention came with it: serves one step
  bool speculated = false;   // FINAL from speculate(): stands for the step it was made in
  uint32_t unit = KVASIR_UNIT_BLOCK;
  uint32_t width = 0;         // weights per index
  uint32_t sink_end = 0;      // tokens; frozen with the selection so that nothing falls between
  uint32_t window_begin = 0;  // window and candidates
  uint32_t reuse_steps = 0;
  uint32_t made_at = 0;              // decode index
  std::vector<HeadSelection> heads;  // [n_kv_heads], or [1] for all heads
  // Not empty: rows said ALL or NONE and nothing else, which holds for new candidates as well; the
  // window then rolls on while the selection is reused.
  std::vector<HeadSelection> standing;
  const HeadSelection& head(uint32_t kv_head) const {
    return heads.size() == 1 ? heads[0] : heads[kv_head];
  }
};

struct BlockList {
  std::vector<std::shared_ptr<Block>> blocks;  // null: given up as a whole
  std::vector<kvasir_lease> leases;            // parallel: what backends and plugins see
  std::vector<NeededBlock> partial;            // what PARTIAL leases of this step cover
};

// The living tokens of one kv head, closed up in order of position in blocks of that head alone.
struct PackedHead : BlockList {
  std::shared_ptr<const std::vector<uint32_t>> live;  // slot -> position; leases point to it
};

// What is left below `end` once tokens were evicted there: the memory of the dead is free.
struct PackedTokens {
  uint32_t end = 0;               // tokens; a multiple of block_size, 0 = nothing is packed
  std::vector<PackedHead> heads;  // [n_kv_heads], or empty
};

// Blocks stand at their logical index: block i holds positions from i * block_size on. Those below
// packed.end are null.
struct LayerState : BlockList {
  PackedTokens packed;
  std::vector<std::vector<bool>> dead;            // [kv_head][token] evicted; empty: nothing is
  std::vector<std::vector<uint32_t>> live;        // [kv_head] the others of [0, dead.size())
  std::vector<std::vector<uint32_t>> restricted;  // [kv_head] reachable units; empty: all
  uint32_t restricted_unit = KVASIR_UNIT_BLOCK;
  uint32_t restricted_end = 0;  // units from here on did not exist when the restriction was made
  LayerSelection selection;
  std::vector<LayerSelection>
      drafted;                   // what selection was after each token that is to be verified
  uint32_t final_blocks = 0;     // blocks [0, n) were reported FINAL and not cut since
  uint32_t context_blocks = 0;   // hybrid mode: no block of [0, n) lies in the window's storage
  std::vector<SlabPages> slabs;  // one per slab owner
};

struct Sequence {
  uint64_t id = 0;
  uint32_t strategy = 0;  // index of the engine's
  uint32_t kv_len = 0;
  uint32_t prompt_begin = 0, prompt_end = 0;  // prompt_end > kv_len: not all of it is read yet
  uint32_t decode_index = 0;                  // decoded tokens since the prompt's end
  std::vector<int32_t> tokens;
  ContentHash content;  // names of its full blocks
  // The sequence whose prompt it has read up to led_to: its open block was a copy of that one's.
  uint64_t led_by = 0;
  uint32_t led_to = 0;
  std::vector<LayerState> layers;
  // Why a step could not finish it: layers hold unlike numbers of tokens, it can only be closed.
  std::exception_ptr fault;

  bool reads_prompt() const { return kv_len < prompt_end; }
  void fail(std::exception_ptr why) {
    if (!fault) fault = std::move(why);
  }
};

}  // namespace kvasir
