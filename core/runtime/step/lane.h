// The pieces of one strategy in a step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/runtime/step/pass.h"
#include "core/runtime/step/placing.h"
#include "core/runtime/step/strategy_run.h"

namespace kvasir {

struct Lane {
  explicit Lane(StrategyRun& of) : run(of) {}

  StrategyRun& run;
  std::vector<Piece> pieces;  // those that have not failed yet
  // Sequences of another strategy that read the prompt pieces of this lane.
  struct Followers {
    Lane* lane;
    std::vector<Piece> pieces;       // the queries are those of the piece that leads
    std::vector<Sequence*> leaders;  // [pieces]
  };
  std::vector<Followers> followers;
  // Tokens that are computed again, densely and without any plugin of the selecting kinds.
  struct Redo {
    Piece piece;  // kv_len: all that the sequence holds
    std::vector<uint32_t> positions;
    const NarrowRecompute* narrow;
    uint32_t first_position;           // that changes, before anything was narrowed
    const Placing* placing = nullptr;  // tokens [first_position, piece.kv_len) are new
    std::unique_ptr<PlacedLayers> placed = nullptr;  // of the step under way
  };
  std::vector<Redo> redone;
  uint64_t nanos = 0;                           // in stages and plugins
  uint64_t choose_nanos = 0, attend_nanos = 0;  // of these
  uint64_t plugin_nanos = 0, plugin_calls = 0, copied_bytes = 0;
  uint32_t n_prefill = 0, n_decode = 0;  // tokens, of its pieces and those it follows
  uint32_t n_followed = 0;               // of n_prefill: another lane computes them

  // Removes what has failed. A follower ends with the piece whose prompt it reads.
  void drop_failed();
};

}  // namespace kvasir
