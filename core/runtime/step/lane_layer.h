// What a lane does in a layer between projections and feed-forward: append, tell, select, attend,
// observe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/step/lane.h"
#include "core/runtime/step/step_buffers.h"
#include "core/runtime/step/step_timer.h"

namespace kvasir {

class LaneLayer {
 public:
  LaneLayer(StepBuffers& buffers, StepTimer& timer) : b_(buffers), timer_(timer) {}

  // Tokens to be verified go one after another, each with a selection of its own, as if each had a
  // step: all sequences that have a first token, then all that have a second. What fails leaves the
  // lane.
  void run(Lane& lane, uint32_t layer);

 private:
  Pass pass_of(const Lane& lane, uint32_t layer, std::vector<Piece> pieces) const;
  void run_first_round(Lane& lane, uint32_t layer);
  void run_round(Lane& lane, uint32_t layer, uint32_t round);
  void append(Lane& lane, Pass& pass);
  void attend(Lane& lane, Pass& pass);
  void attend_queries(Lane& lane, const Pass& pass);
  // The piece with those of its queries that are attended: all, but of a piece that was given
  // (step/given.h), and in the last layer of a prompt's (StepBuffers::wanted). n_q = 0: none is.
  Piece attended_of(const Lane& lane, uint32_t layer, const Piece& piece) const;
  void attend_pieces(Lane& lane, Pass& pass);
  // A piece of a prompt, slice by slice as selectors ask.
  void attend_slices(Lane& lane, const Pass& pass);
  // A slice with a list per query block.
  void attend_lists(Lane& lane, const Pass& pass);
  void lead(Lane::Followers& followers, uint32_t layer);
  void follow(const Lane& lane, Lane::Followers& followers, uint32_t layer);
  void finish(Lane& lane, uint32_t layer);

  StepBuffers& b_;
  StepTimer& timer_;
};

}  // namespace kvasir
