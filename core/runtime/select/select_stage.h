// Which selection each sequence of a pass attends with, in one layer: cadence, bypass, the chain of
// selectors, fallback.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/runtime/select/choice.h"
#include "core/runtime/select/contribution.h"
#include "core/runtime/select/device_lists.h"
#include "core/runtime/select/selector_call.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class SelectStage {
 public:
  explicit SelectStage(const RunContext& context) : c_(context), caller_(context) {}

  // Pieces of prompts are dense unless a selector selects in prefill; then they come alone. The
  // result points into the sequences' history, one per piece.
  std::vector<const LayerSelection*> select(const Pass& pass);
  // Whether the latest select() left lists on the device, which read_lists() must read before the
  // next call. Until then some of its selections hold placeholders (LayerSelection::there).
  bool has_unread() const { return !unread_.choices.empty(); }
  // Finishes the selections as select() would have. False: some are not what is on the device.
  // beside: null, or what may be asked of the storage in the same breath.
  bool read_lists(FiniteQuestion* beside);
  // What is there.
  const kvasir_view& lists_there() const { return unread_.answer.index; }
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
  // Whether a selector is shown the layer's input as it chooses.
  bool reads_input(uint32_t layer) const;
  // The layer that is speculated for at pass.layer, where it is due; 0 = none.
  uint32_t speculation_target(const Pass& pass) const;
  // The same after the attention of pass.layer, where the core foresees for a selector that chooses
  // by scores, as [cache] foresee says.
  void foresee(const Pass& pass);
  // Whether the core ever does so at this layer, and whether for one of these pieces now.
  bool foresees(uint32_t layer) const;
  bool foresees(const Pass& pass) const;
  // For a storage that takes blocks ahead: has all blocks read that the layer behind `layer` will
  // attend to, for pieces that choose nothing there. Behind the last layer comes the first one, of
  // the next step. `layer` has let go of its own blocks: one layer at a time lies whole in memory.
  void read_dense_ahead(uint32_t layer, const std::vector<Piece>& of_lane);

 private:
  // Cadence and groups of layers (select_stage.cc).
  bool due(uint32_t layer, const Sequence& seq) const;
  Choice begin_due(uint32_t layer, Piece piece) const;  // into the layer's own selection
  const LayerSelection* follow(uint32_t layer, const Piece& piece,
                               const LayerSelection& chosen) const;
  // Goes on with the selection that is there. Where only the first selector of a chain made it, the
  // rest is left to be chosen: in `resumed`, for the second selector.
  void keep(uint32_t layer, const Piece& piece, std::vector<Choice>& resumed);
  Choice resume(uint32_t layer, const Piece& piece) const;
  void roll(uint32_t layer, const Piece& piece) const;

  // The chain (select_stage.cc). The pieces of `pass` are not used, those of the choices are.
  void run_chain(size_t first, const Pass& pass, std::vector<Choice>& choices);
  void run_selector(size_t index, const Pass& pass, const std::vector<Choice*>& choices);
  void ask(size_t index, const Pass& pass, const std::vector<Choice*>& choices);
  void ask_here(size_t index, const Pass& pass, const std::vector<Choice*>& choices);
  // What a call left undone: it failed, or asked for dense attention.
  void make_good(size_t index, const Pass& pass, const SelectorAnswer& answer,
                 const std::vector<Choice*>& choices);
  // What the lists of sequence `seq` of the call choose.
  void take(size_t index, const ListBuffer& lists, uint32_t seq, Choice& choice);
  SelectorInput input_of(const Pass& pass, const std::vector<Choice*>& choices) const;
  void fault(size_t index, const std::string& function, uint32_t layer,
             const std::vector<Choice*>& choices, const std::string& text);
  void fall_back(const std::vector<Choice*>& choices);
  Engagement& counters(const Choice& choice) const {
    return c_.counters.of(choice.piece.prefills());
  }

  // unread_lists.cc
  bool can_stay(uint32_t layer, const std::vector<Choice*>& choices) const;
  // Sets those choices aside whose lists are on the device; the others are returned.
  std::vector<Choice> set_aside(std::vector<Choice>&& choices);
  // Takes each piece's lists, of which some are wrong.
  void take_each(const UnreadLists& unread, const std::vector<Choice*>& choices);

  // select_lists.cc
  void take_lists(const ListBuffer& lists, uint32_t seq, Choice& choice);

  // speculate.cc
  void choose_ahead(const Pass& pass, uint32_t target);
  void read_ahead(const Pass& pass, uint32_t target);
  bool begins_selection(uint32_t layer) const;  // of a group of layers that are not dense
  bool chooses_nothing(uint32_t layer, const Piece& piece) const;
  // False: the call failed, or asked for dense attention, for several sequences.
  bool speculate_together(const Pass& pass, uint32_t target);
  // made: [pass.pieces], where the choices are finished.
  std::vector<Choice> begin_speculation(const Pass& pass, uint32_t target,
                                        std::vector<LayerSelection>& made) const;
  // What the target will need of the blocks.
  ListNeeds take_speculation(const ListBuffer& lists, uint32_t seq, uint32_t target,
                             Choice& choice);

  const RunContext& c_;
  SelectorCaller caller_;
  const LayerSelection everything_ = LayerSelection::everything();
  Contribution contribution_;
  UnreadLists unread_;
};

}  // namespace kvasir
