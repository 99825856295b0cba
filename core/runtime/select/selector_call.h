// One call of select() or speculate(): what goes in, and what came out, checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/runtime/select/choice.h"
#include "core/runtime/select/index_lists.h"
#include "core/runtime/select/scores.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// f32 on the device, and whether all of it is finite: what is known once somebody has asked.
struct FiniteQuestion {
  kvasir_view of{};
  std::optional<bool> answer;
};

struct SelectorInput {
  Pass pass;                                  // the pieces of the call
  std::vector<const Candidates*> candidates;  // [pieces]
  QueryBlocks blocks;                         // of the only piece, if there are several
};

struct SelectorAnswer {
  ListBuffer lists;         // valid when ok()
  std::string fault;        // what is wrong with the call; empty: nothing
  bool asks_dense = false;  // for at least one of the pieces
  // Of select_there(): where the indices are, and the scores that they were chosen by.
  kvasir_view index{};
  Scores scores;
  bool ok() const { return fault.empty() && !asks_dense; }
};

class SelectorCaller {
 public:
  explicit SelectorCaller(const RunContext& context) : c_(context), scorer_(context) {}

  SelectorAnswer select(size_t selector, const SelectorInput& input);
  // Where lists_can_stay(): the indices are on the device, and neither they nor the scores are
  // checked until read_lists(), before the next call.
  SelectorAnswer select_there(size_t selector, const SelectorInput& input);
  // Reads the indices of the answer and checks the scores. Returns what is wrong with the lists, or
  // "". Throws PluginError for the scores, and where the storage cannot copy. beside: null, or what
  // the storage is asked of in the same breath.
  std::string read_lists(size_t selector, const SelectorInput& input, SelectorAnswer& answer,
                         FiniteQuestion* beside);
  // What is wrong with lists that were read; or "".
  std::string check(const Selector& selector, const SelectorInput& input, bool may_contribute,
                    const ListBuffer& lists) const;
  // The first selector, at pass.layer for the layer `target`. Throws PluginError where the storage
  // cannot copy the inputs.
  SelectorAnswer speculate(const SelectorInput& input, uint32_t target);
  // In host memory: what select() would give a selector that looks at the n_best of them.
  Scores score(const Pass& pass, const std::vector<const Candidates*>& candidates,
               uint32_t n_best) {
    return scorer_.score(pass, candidates, n_best, Stay::kNever);
  }
  // Of an answer that nobody needs any more: the next call writes there.
  void take_back(ListBuffer&& lists) { spare_ = std::move(lists); }

 private:
  // What kvasir_sel_in points to.
  struct SelectArguments {
    kvasir_sel_in in{};
    Scores scores;
    std::vector<kvasir_lease> leases;
    std::vector<uint64_t> lease_offsets;
  };
  using Function = std::function<kvasir_status(kvasir_selection&)>;

  kvasir_view q_for(const Selector& selector, const ModelRows& q, uint64_t n);
  kvasir_view x_for(const Selector& selector, const Activations& in);
  bool heats(size_t index, const SelectorInput& input) const;  // the storage wants the scores
  void fill(const Selector& selector, const SelectorInput& input, bool every_score, Stay stay,
            SelectArguments& out);
  // Calls fn, with more space as often as it asks for it. contribution_queries: queries of the
  // step; 0: no contribution is allowed.
  SelectorAnswer call(const Selector& selector, const SelectorInput& input,
                      uint64_t contribution_queries, const Function& fn);
  uint64_t most_bytes_read(const SelectorInput& input, const SelectorLimits& limits) const;
  uint32_t lists_per_piece(const Selector& selector, const QueryBlocks& blocks) const;

  const RunContext& c_;
  Scorer scorer_;
  MemoryBridge::Buffer q_hold_, x_hold_, scores_hold_, index_hold_;  // for a selector on a device
  ListBuffer spare_;
  // The most indices that each selector needed space for: one that was refused too little space
  // once would otherwise choose twice in every call.
  std::unordered_map<const Selector*, uint64_t> needed_;
};

}  // namespace kvasir
