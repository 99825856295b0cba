// Which selection each sequence of a batch attends with, in one layer: cadence, bypass, chain of
// selectors, scores, fallback.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/runtime/step/run_context.h"

namespace kvasir {

class SelectStage {
 public:
  explicit SelectStage(RunContext& context) : c_(context) {}

  // Of all queries of the step, rows as Piece::q_begin says.
  struct Inputs {
    const float* q;  // what the candidates will be attended with, f32 [n][n_q_heads][head_dim]
    const float* x;  // what the layer projects, f32 [n][d_model]
    uint64_t n;
  };
  // Rows that prefill are dense unless a selector selects in prefill; then they come alone. The
  // result points into the sequences' history, one per row.
  std::vector<const LayerSelection*> select(uint32_t layer, std::vector<Piece> pieces,
                                            const Inputs& inputs);
  // A row that prefills, divided into rows of one selection each: of query_block queries (0: all of
  // its queries), or the whole row where everything is attended.
  struct Lists {
    std::vector<Piece> pieces;
    std::vector<LayerSelection> selections;  // [rows]
  };
  Lists select_lists(uint32_t layer, const Piece& piece, const Inputs& inputs,
                     uint32_t query_block);
  // What the latest select() or select_lists() was handed over for keys that no list names;
  // null: nothing.
  struct Contribution {
    std::vector<float> o, lse;  // [queries][n_q_heads][v_dim], [queries][n_q_heads]
  };
  const Contribution* contribution() const {
    return contribution_.lse.empty() ? nullptr : &contribution_;
  }
  // For rows that decode, before `layer` projects: x [rows][d_model], q of the target layer
  // computed by the caller.
  void speculate(uint32_t layer, uint32_t target, const std::vector<Piece>& pieces, const float* x,
                 const float* q, uint64_t n_queries);
  // Whether some selector speculates for a layer `ahead` of `layer` that is due; 0 = none.
  uint32_t speculation_target(uint32_t layer, const std::vector<Piece>& pieces) const;
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
