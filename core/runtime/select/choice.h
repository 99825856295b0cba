// What the selectors of a chain, one after another, choose for one piece.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/select/candidates.h"
#include "core/runtime/sequence/sequence.h"
#include "core/runtime/step/engagement.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// How a prompt's queries are divided into blocks that have a list each.
struct QueryBlocks {
  uint32_t size = 0;  // queries of a block, the last may have fewer; 0: one list for all queries
  uint32_t n = 1;
  std::vector<uint32_t> candidates_end;  // [n] units; with size 0: empty
};

// What heads_of() gives for one query block.
struct ChosenList {
  std::vector<HeadSelection> heads;
  uint32_t width = 0;  // weights per index
  bool fallback = false;
};

// begin(), narrow() once per selector that chooses, finish().
struct Choice {
  Piece piece;
  Candidates candidates;          // what the next selector chooses among
  LayerSelection* out = nullptr;  // finished there; not owned
  bool bypassed = true;           // no selector was asked
  bool failed = false;            // attends densely
  bool contributed = false;
  bool is_there = false;  // its lists are on the device, and were not read yet
  uint32_t width = 0;     // weights per candidate
  uint32_t reuse_steps = 0;
  std::vector<HeadSelection> standing;  // see LayerSelection
  // Keeps what is returned in `lists`, blocks.n of them or one, instead of narrowing: for
  // select_lists().
  bool keeps_lists = false;
  QueryBlocks blocks;
  std::vector<ChosenList> lists;

  // All that the piece may reach in the layer, with the forced ranges as of now; `out` is reset.
  static Choice begin(const RunContext& context, uint32_t layer, const Piece& piece,
                      LayerSelection& out);
  // Whether the selector would be asked in vain: all candidates fit, or dense attention is better.
  bool is_covered_by(const SelectorLimits& limits) const;
  // Replaces the candidates by what was chosen among them; log-weights add along the chain.
  // heads: [n_kv_heads], or [1] for all heads, with `width` weights per index.
  void narrow(std::vector<HeadSelection>&& heads, uint32_t width, uint32_t n_kv_heads);
  void finish(Engagement& counters);
};

}  // namespace kvasir
