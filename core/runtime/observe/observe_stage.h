// Queries and attention mass, shown to those who decide by them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/attend/attend_stage.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class ObserveStage {
 public:
  explicit ObserveStage(const RunContext& context) : c_(context) {}

  // The last queries of prompts, for selectors with prefill().
  void prompt_queries(const Pass& pass);
  // How many queries at the end of a piece of a prompt somebody asks the mass of.
  uint32_t n_asked(uint32_t layer, const Piece& piece) const;
  // After attention: its mass to observers and to owners of records that asked.
  void observe(const Pass& pass, AttendStage& attention);

 private:
  // Pieces whose mass somebody wants, and from which position of a query on.
  struct Watched {
    Pass pass;
    std::vector<uint32_t> from_pos;
  };
  static Watched watched(const Pass& pass, uint32_t mass_at, uint32_t last_queries);
  void observe_selector(Selector& selector, const Watched& watched,
                        const std::vector<std::vector<HeadMass>>& mass);
  // As MASS items of the blocks concerned.
  void feed_mass(const SlabOwner& owner, const Pass& pass,
                 const std::vector<std::vector<HeadMass>>& mass);

  const RunContext& c_;
  // Where a selector or the representative works on a device.
  MemoryBridge::Buffer q_hold_, mass_hold_;
};

}  // namespace kvasir
