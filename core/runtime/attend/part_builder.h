// From one piece's selection to the parts of the attention call, and what these need of its blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/runtime/attend/layer_needs.h"
#include "core/runtime/attend/part.h"
#include "core/runtime/attend/rotation.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Parts point into the layer's leases, the activations of the pass and the copies of `rotation`.
class PartBuilder {
 public:
  PartBuilder(const RunContext& context, const Pass& pass, const Piece& piece, Rotation& rotation);
  // Once: makes the parts, of which finish() makes what backends take.
  void build(const LayerSelection& selection);
  void add_needs(LayerNeeds& needs) const;
  // Once what they need is leased: adds the parts to the end of `parts`.
  void finish(std::deque<Part>& parts);

 private:
  void build_dense();
  void build_sliding();
  void build_near_and_far(const LayerSelection& selection);
  void build_chosen(const LayerSelection& selection);
  // q: the rotation of the queries that it is attended with. is_far: at a constant position, for
  // which keys are not rotated.
  Part& new_part(uint32_t unit, const ModelRows& q, bool is_far = false);
  void add_block_range(Part& part, uint32_t head, const LayerSelection& selection,
                       bool sink_and_selected);
  void add_token_range(Part& part, uint32_t head, const LayerSelection& selection);
  // Items from `begin` on.
  void add_range(Part& part, uint32_t head, uint64_t begin, uint64_t end);
  void finish(Part& part);
  // Hybrid mode: adds the part's context blocks and its window's as a part each.
  void split(const Part& whole, std::deque<Part>& parts) const;
  Part narrowed(const Part& whole, const std::vector<kvasir_lease>& leases, bool in_window) const;

  const RunContext& c_;
  const Activations& in_;
  const Piece& piece_;
  LayerState& state_;
  uint32_t window_;  // sliding, or 0
  Rotation& rotation_;
  std::vector<Part> parts_;
};

}  // namespace kvasir
