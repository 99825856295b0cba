// Which selection each sequence of a batch attends with, in one layer: cadence, bypass, chain of
// selectors, scores, fallback.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/runtime/select/contribution.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class SelectStage {
 public:
  explicit SelectStage(const RunContext& context) : c_(context) {}

  // Pieces of prompts are dense unless a selector selects in prefill; then they come alone. The
  // result points into the sequences' history, one per piece.
  std::vector<const LayerSelection*> select(const Pass& pass);
  // A piece of a prompt, divided into pieces of one selection each: of query_block queries (0: all
  // of its queries), or the whole piece where everything is attended.
  struct Lists {
    std::vector<Piece> pieces;
    std::vector<LayerSelection> selections;  // [pieces]
  };
  Lists select_lists(const Pass& pass, uint32_t query_block);  // of the only piece
  // What the latest select() or select_lists() was handed over; null: nothing.
  const Contribution* contribution() const {
    return contribution_.lse.empty() ? nullptr : &contribution_;
  }
  // For pieces that decode one token, before pass.layer projects. pass.in: x and q of these pieces
  // alone, q as the target layer would project it.
  void speculate(const Pass& pass, uint32_t target);
  // The layer that some selector speculates for at pass.layer, where it is due; 0 = none.
  uint32_t speculation_target(const Pass& pass) const;
  bool selects_in_prefill() const;

 private:
  bool speculate_together(uint32_t layer, uint32_t target, const std::vector<Piece>& pieces,
                          const float* x, const float* q, uint64_t n_queries);
  struct Work {  // one row on its way through the chain
    Piece piece;
    Candidates candidates;
    LayerSelection* out;
    bool bypassed = true, failed = false;
    uint32_t width = 0, reuse_steps = 0;
    std::vector<HeadSelection> standing;
    bool contributed = false;
    // Where a prompt's queries are divided: see select_lists().
    struct List {
      std::vector<HeadSelection> heads;
      uint32_t width = 0;
      bool fallback = false;
    };
    bool keeps_lists = false;
    uint32_t query_block = 0, n_lists = 1;
    std::vector<uint32_t> list_end;
    std::vector<List> lists;  // what was returned: n_lists of them, or one
  };
  struct Allowed {
    bool weights = false;
    uint64_t contribution_queries = 0;  // 0: no contribution
  };
  bool due(uint32_t layer, const Sequence& seq) const;
  const LayerSelection* follow(uint32_t layer, const Piece& piece,
                               const LayerSelection& chosen) const;
  Work start(uint32_t layer, const Piece& piece) const;
  Work resume(uint32_t layer, const Piece& piece) const;
  // Selectors from `first` on.
  void run_chain(size_t first, uint32_t layer, std::vector<Work>& works, const Inputs& inputs);
  void run_selector(size_t index, uint32_t layer, const std::vector<Work*>& works,
                    const Inputs& inputs);
  // One call of select(); empty, or what was wrong with it. A call that asks for dense attention
  // marks the works as failed.
  std::string ask(size_t index, uint32_t layer, const std::vector<Work*>& works,
                  const Inputs& inputs);
  void take_lists(Work& work, const ListBuffer& result, uint32_t row);
  // Of the queries of a row; false: there is none.
  bool take_contribution(const ListBuffer& result, const Piece& piece);
  std::string check_contribution(const ListBuffer& result, const std::vector<Piece>& pieces) const;
  void narrow(Work& work, std::vector<HeadSelection>&& heads, uint32_t width) const;
  void finish(Work& work) const;
  bool call(Selector& selector, const std::vector<Work*>& works, const Allowed& allowed,
            const std::function<kvasir_status(kvasir_selection&)>& fn, ListBuffer& lists,
            std::string* fault);
  void fault(size_t index, const std::string& function, uint32_t layer,
             const std::vector<Work*>& works, const std::string& text);
  void fall_back(const std::vector<Work*>& works);
  Engagement& counters(const Work& work) const { return c_.counters(work.piece.prefills()); }
  void roll(uint32_t layer, const Piece& piece) const;

  struct Scores {
    std::vector<uint64_t> q_offsets, offsets;
    std::vector<float> per_q_head, reduced;
    uint32_t n_heads = 0;
  };
  void score(uint32_t layer, const std::vector<Work*>& works, const Inputs& inputs, Scores& out);
  void reduce(const std::vector<Work*>& works, Scores& scores) const;

  RunContext& c_;
  // Where a selector or the representative works on a device.
  MemoryBridge::Buffer q_hold_, x_hold_, scores_hold_, score_q_hold_, score_hold_;
  LayerSelection dense_{};
  Contribution contribution_;
};

}  // namespace kvasir
