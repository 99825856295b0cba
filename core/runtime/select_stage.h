// Which selection each sequence of a batch attends with, in one layer: cadence, bypass, chain of
// selectors, scores, fallback.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/runtime/run_context.h"

namespace kvasir {

class SelectStage {
 public:
  explicit SelectStage(RunContext& context) : c_(context) {}

  // q: what the candidates will be attended with, f32 [queries][n_q_heads][head_dim], rows as
  // BatchRow::q_begin says. Rows that prefill are dense unless a selector selects in prefill; then
  // they come alone. The result points into the sequences' history, one per row.
  std::vector<const LayerSelection*> select(uint32_t layer, std::vector<BatchRow> rows,
                                            const float* q, uint64_t n_queries);
  // For rows that decode, before `layer` projects: x [rows][d_model], q of the target layer
  // computed by the caller.
  void speculate(uint32_t layer, uint32_t target, const std::vector<BatchRow>& rows, const float* x,
                 const float* q, uint64_t n_queries);
  // Whether some selector speculates for a layer `ahead` of `layer` that is due; 0 = none.
  uint32_t speculation_target(uint32_t layer, const std::vector<BatchRow>& rows) const;
  bool selects_in_prefill() const;

 private:
  bool speculate_together(uint32_t layer, uint32_t target, const std::vector<BatchRow>& rows,
                          const float* x, const float* q, uint64_t n_queries);
  struct Work {  // one row on its way through the chain
    BatchRow row;
    Candidates candidates;
    LayerSelection* out;
    bool bypassed = true, failed = false;
    uint32_t width = 0, reuse_steps = 0;
    std::vector<HeadSelection> standing;
  };
  bool due(uint32_t layer, const Sequence& seq) const;
  const LayerSelection* follow(uint32_t layer, const BatchRow& row,
                               const LayerSelection& chosen) const;
  Work start(uint32_t layer, const BatchRow& row) const;
  Work resume(uint32_t layer, const BatchRow& row) const;
  // Selectors from `first` on.
  void run_chain(size_t first, uint32_t layer, std::vector<Work>& works, const float* q,
                 uint64_t n_queries);
  void run_selector(size_t index, uint32_t layer, const std::vector<Work*>& works, const float* q,
                    uint64_t n_queries);
  // One call of select(); empty, or what was wrong with it. A call that asks for dense attention
  // marks the works as failed.
  std::string ask(size_t index, uint32_t layer, const std::vector<Work*>& works, const float* q,
                  uint64_t n_queries);
  void narrow(Work& work, std::vector<HeadSelection>&& heads, uint32_t width) const;
  void finish(Work& work) const;
  bool call(Selector& selector, const std::vector<Work*>& works, bool weights,
            const std::function<kvasir_status(kvasir_selection&)>& fn, RowBuffer& rows,
            std::string* fault);
  void fault(size_t index, const std::string& function, uint32_t layer,
             const std::vector<Work*>& works, const std::string& text);
  void fall_back(const std::vector<Work*>& works);
  Engagement& counters(const Work& work) const { return c_.counters(work.row.prefills()); }
  void roll(uint32_t layer, const BatchRow& row) const;

  struct Scores {
    std::vector<uint64_t> q_offsets, offsets;
    std::vector<float> per_q_head, reduced;
    uint32_t n_heads = 0;
  };
  void score(uint32_t layer, const std::vector<Work*>& works, const float* q, uint64_t n_queries,
             Scores& out);
  void reduce(const std::vector<Work*>& works, Scores& scores) const;

  RunContext& c_;
  // Where a selector or the representative works on a device.
  MemoryBridge::Buffer q_hold_, x_hold_, scores_hold_, score_q_hold_, score_hold_;
  LayerSelection dense_{};
};

}  // namespace kvasir
