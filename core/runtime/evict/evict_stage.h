// Plans of selectors for what to give up, and carrying them out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/runtime/select/index_lists.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class EvictStage {
 public:
  explicit EvictStage(const RunContext& context) : c_(context) {}

  // Asks for the plans that are due at `plan_at` (KVASIR_PLAN_AT_*) of every layer and carries them
  // out. A faulty plan changes nothing.
  void evict(const std::vector<Piece>& pieces, uint32_t plan_at);

 private:
  // Pieces of a layer whose plan is due, and what each may give up.
  struct Due {
    Pass pass;
    std::vector<Candidates> candidates;  // [pieces]
    std::vector<const Candidates*> pointers() const;
  };
  Due due(const Selector& selector, uint32_t layer, const std::vector<Piece>& pieces,
          uint32_t plan_at) const;
  // Asks for one layer's plan and carries it out; empty, or what is wrong with it.
  std::string plan(Selector& selector, const Due& due);
  void apply(const Due& due, const kvasir_selection& plan);
  // What is to be packed afterwards, and of which pieces.
  std::vector<BlockStore::Packing> evict_planned(const Due& due, const kvasir_selection& plan,
                                                 std::vector<Piece>& packed);
  // A plan that restricts puts the others out of reach. True: units were evicted.
  bool evict(LayerState& state, const kvasir_selection& plan,
             const std::vector<HeadSelection>& heads, const Candidates& candidates);
  void evict_units(LayerState& state, uint32_t unit, uint32_t end,
                   const std::vector<std::vector<uint32_t>>& lost);

  const RunContext& c_;
  ListBuffer lists_;
};

}  // namespace kvasir
