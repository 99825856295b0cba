// One step: every item's tokens through the layers in one pass, one matrix product per weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/runtime/step/strategy_run.h"

namespace kvasir {

// The rows of one strategy in a step.
struct Lane {
  explicit Lane(StrategyRun& of) : run(of) {}

  StrategyRun& run;
  std::vector<Piece> pieces;  // those that have not failed yet
  // Sequences of another strategy that read the prompt pieces of rows of this lane.
  struct Followers {
    Lane* lane;
    std::vector<Piece> pieces;       // the queries are those of the row that leads
    std::vector<Sequence*> leaders;  // [rows]
  };
  std::vector<Followers> followers;
  // Tokens that are computed again, densely and without any plugin of the selecting kinds.
  struct Redo {
    Piece piece;  // kv_len: all that the sequence holds
    std::vector<uint32_t> positions;
    const NarrowRecompute* narrow;
    uint32_t first_position;  // before anything was narrowed
  };
  std::vector<Redo> redone;
  uint64_t nanos = 0;  // in stages and plugins
  uint64_t plugin_nanos = 0, plugin_calls = 0, copied_bytes = 0;
  uint32_t n_prefill = 0, n_decode = 0;  // tokens, of its rows and those it follows
  uint32_t n_followed = 0;               // of n_prefill: another lane computes them
};

class StepLoop {
 public:
  // max_tokens: of one step.
  StepLoop(const Model& model, uint32_t max_tokens);

  // Appends `tokens`, which the rows of all lanes divide up by q_begin and n_q, to their sequences
  // and leaves the last hidden states in hidden(). Rows whose sequence failed disappear from the
  // lanes. Throws only what concerns every row (the model's own errors).
  void run(std::vector<Lane>& lanes, std::span<const int32_t> tokens);
  const float* hidden(uint32_t query) const;  // [d_model]
  // hidden [n][d_model] -> out [n][vocab].
  void logits(const float* hidden, uint32_t n, float* out);
  // The plans that are due, once the sequences count the step's tokens. Followers have their own
  // open blocks from here on.
  void evict(std::vector<Lane>& lanes);
  // Adds the time since run() began to the counters of the lanes, model time by tokens.
  void account(std::vector<Lane>& lanes);

 private:
  // Runs fn as a part of the lane's work.
  template <class Fn>
  void in_lane(Lane& lane, Fn&& fn);
  // What a storage moved counts where it was moved for; strategies may share one.
  static void count_transfers(const Lane& lane);
  template <class Fn>
  void in_model(Fn&& fn);
  void run_layer(uint32_t layer, std::vector<Lane>& lanes);
  void speculate(Lane& lane, uint32_t layer);
  void project(uint32_t layer, std::vector<Lane>& lanes);
  void run_lane(Lane& lane, uint32_t layer);
  void run_round(Lane& lane, uint32_t layer, uint32_t round);
  void run_first_round(Lane& lane, uint32_t layer);
  void append(Lane& lane, uint32_t layer, std::vector<Piece>& pieces);
  void attend(Lane& lane, uint32_t layer, std::vector<Piece>& pieces);
  void redo(Lane& lane, Lane::Redo& redo, uint32_t layer);
  void narrow(Lane& lane, Lane::Redo& redo, uint32_t layer);
  void attend_pieces(Lane& lane, uint32_t layer, std::vector<Piece>& pieces);
  void attend_slice(Lane& lane, uint32_t layer, const Piece& piece);
  SelectStage::Inputs inputs_of(const Lane& lane) const;
  AttendStage::Queries queries_of(const Lane& lane) const;
  void attend_slices(Lane& lane, uint32_t layer, const Piece& piece);
  void follow(const Lane& lane, Lane::Followers& followers, uint32_t layer);
  void rope(const std::vector<Piece>& pieces, float* values, uint32_t heads) const;

  const Model& model_;
  uint32_t n_ = 0;  // queries of the step
  size_t n_lanes_ = 0;
  std::vector<float> h_, x_, q_, k_, v_, o_, q_constant_, x_decode_, q_target_;
  std::vector<uint32_t> positions_;
  uint64_t begun_ = 0, model_nanos_ = 0;
};

}  // namespace kvasir
