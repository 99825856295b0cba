// One step: every item's tokens through the layers in one pass, one matrix product per weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/runtime/step/given.h"
#include "core/runtime/step/lane.h"
#include "core/runtime/step/lane_layer.h"
#include "core/runtime/step/step_buffers.h"
#include "core/runtime/step/step_timer.h"

namespace kvasir {

class StepLoop {
 public:
  // max_tokens: of one step.
  StepLoop(const Model& model, uint32_t max_tokens);

  // Appends `tokens`, which the pieces of all lanes divide up by q_begin and n_q, to their
  // sequences and leaves the last hidden states of `wanted`, queries in ascending order, for
  // hidden(). Pieces whose sequence failed disappear from the lanes. Throws only what concerns
  // every piece (the model's own errors).
  void run(std::vector<Lane>& lanes, std::span<const int32_t> tokens, std::vector<uint32_t> wanted);
  // The same for n tokens of one piece, whose projections are given: the model computes nothing and
  // hidden() says nothing. turn: StepItem::given_turn.
  void run_given(std::vector<Lane>& lanes, uint32_t n, const GivenProjections& given,
                 std::span<const int32_t> turn);
  // Appends those of the queries to `to`, [queries][d_model]. Error(kInternal) for one that was not
  // wanted.
  void hidden(std::span<const uint32_t> queries, std::vector<float>& to);
  // hidden [n][d_model], n at most StepBuffers::kLogitTokens. Returns [n][vocab], until the next
  // call. Error(kInput) when a logit is not finite.
  std::span<const float> logits(const float* hidden, uint32_t n);
  // The plans that are due, once the sequences count the step's tokens. Followers have their own
  // open blocks from here on.
  void evict(std::vector<Lane>& lanes);
  // Adds the time since run() began to the counters of the lanes.
  void account(std::vector<Lane>& lanes) { timer_.account(lanes, model_.shape().n_layers); }

 private:
  void begin(const std::vector<Lane>& lanes, uint32_t n);
  void begin_placing(std::vector<Lane>& lanes) const;
  // What is placed in `layer` is loaded while the model computes: nothing calls a storage before
  // the layer does.
  static void load_ahead(std::vector<Lane>& lanes, uint32_t layer);
  static void wait_for_placed(Lane& lane, uint32_t layer);
  void run_layer(uint32_t layer, std::vector<Lane>& lanes);
  // What comes behind its attention.
  void finish_layer(uint32_t layer, std::vector<Lane>& lanes);
  // The others' hidden states stay those of the layer before, and nobody reads them.
  void finish_wanted(uint32_t layer);
  // fn(piece) of all that is computed in the lane; what it throws ends the piece.
  template <class Fn>
  void each_piece(Lane& lane, const Fn& fn) const;
  void check_projections(uint32_t layer, std::vector<Lane>& lanes);
  void check_hidden(uint32_t layer, std::vector<Lane>& lanes);
  // Whether the hidden states of the layer before can be checked once this layer has projected
  // them, so that a device is waited for once: nobody looks at them before.
  static bool can_check_late(uint32_t layer, const std::vector<Lane>& lanes);
  void check_finite(uint32_t layer, const Piece& piece, const char* what,
                    const std::vector<float>& values, uint64_t width) const;
  void speculate(Lane& lane, uint32_t layer);
  void foresee(Lane& lane, Pass& pass);
  static Pass decoding(const Lane& lane, uint32_t layer);
  enum class Rows { kHidden, kInput };
  void gather(Pass& pass, Rows rows);
  void query_ahead(Pass& pass, uint32_t target, Rows rows);
  // Makes them on the device, of the hidden states there, where nobody needs them elsewhere.
  bool query_stays(const Lane& lane, Pass& pass, uint32_t target);
  void project(uint32_t layer, std::vector<Lane>& lanes);
  // Whether what a device projects of this step is read there, and there alone unless a selector
  // asks.
  static bool stays_on_device(const std::vector<Lane>& lanes);
  std::vector<Model::Turn> turns_of(const std::vector<Lane>& lanes) const;
  void turn_given(uint32_t layer, const Lane& lane, std::span<const int32_t> turn);
  void turn_lanes(uint32_t layer, const std::vector<Lane>& lanes);
  void rope_constant(uint32_t layer, const Lane& lane);
  void fork_open_blocks(Lane::Followers& followers) const;

  const Model& model_;
  StepBuffers b_;
  StepTimer timer_;
  LaneLayer lane_layer_{b_, timer_};
  std::vector<float> x_decode_, q_target_;  // of speculate() and foresee()
  std::vector<float> o_wanted_, h_wanted_;  // of finish_wanted()
  bool hidden_is_unchecked_ = false;        // of the layer before
};

}  // namespace kvasir
