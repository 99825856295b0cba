// From one piece's selection to the parts of the attention call, their blocks resident.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/runtime/attend/part.h"
#include "core/runtime/attend/rotation.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Parts point into the layer's leases, the activations of the pass and the copies of `rotation`.
class PartBuilder {
 public:
  PartBuilder(const RunContext& context, const Pass& pass, const Piece& piece, Rotation& rotation,
              std::deque<Part>& parts);
  // Adds the piece's parts to the end of `parts`. Throws when a block is lost; what was added until
  // then is the caller's to drop.
  void add(const LayerSelection& selection);

 private:
  void add_dense();
  void add_near_and_far(const LayerSelection& selection);
  void add_chosen(const LayerSelection& selection);
  // q: the rotation of the queries that it is attended with.
  Part& new_part(uint32_t unit, const float* q);
  void add_block_range(Part& part, uint32_t head, const LayerSelection& selection,
                       bool sink_and_selected);
  void add_token_range(Part& part, uint32_t head, const LayerSelection& selection);
  // Items from `begin` on.
  void add_range(Part& part, uint32_t head, uint64_t begin, uint64_t end);
  // Once all its ranges are there; the part may be another one afterwards. rotate: its keys, to
  // their positions.
  void finish(Part& part, bool rotate);
  void make_resident(const Part& part);
  // Hybrid mode: the last part becomes one of the context's blocks and one of the window's.
  void split_last_part();
  Part narrowed(const Part& whole, const std::vector<kvasir_lease>& leases, bool in_window) const;

  const RunContext& c_;
  const Activations& in_;
  const Piece& piece_;
  LayerState& state_;
  Rotation& rotation_;
  std::deque<Part>& parts_;
};

}  // namespace kvasir
