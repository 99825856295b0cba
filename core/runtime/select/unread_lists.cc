// Lists that stay on the device until attention has begun; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/runtime/select/select_stage.h"

namespace kvasir {

// What the host would have to look at first: tokens that are gone or out of reach, queries of
// prompts.
bool SelectStage::can_stay(uint32_t layer, const std::vector<Choice*>& choices) const {
  return c_.lists_stay && std::all_of(choices.begin(), choices.end(), [&](const Choice* choice) {
           const LayerState& state = choice->piece.seq->layers[layer];
           return choice->piece.decodes() && !choice->keeps_lists && !choice->candidates.listed &&
                  state.dead.empty() && state.packed.end == 0;
         });
}

std::vector<Choice> SelectStage::set_aside(std::vector<Choice>&& choices) {
  const auto first = std::stable_partition(choices.begin(), choices.end(),
                                           [](const Choice& choice) { return !choice.is_there; });
  unread_.choices.assign(std::make_move_iterator(first), std::make_move_iterator(choices.end()));
  choices.erase(first, choices.end());
  const std::vector<uint64_t>& offsets = unread_.answer.lists.offsets;
  const uint32_t heads = c_.geometry.n_kv_heads;
  for (size_t i = 0; i < unread_.choices.size(); ++i) {
    LayerSelection& out = *unread_.choices[i].out;
    out.valid = true;
    out.heads.resize(heads);
    for (uint32_t head = 0; head < heads; ++head) {
      const size_t list = i * heads + head;
      out.there.push_back(offsets[list]);
      out.heads[head].index.assign(offsets[list + 1] - offsets[list], 0);
    }
  }
  return std::move(choices);
}

bool SelectStage::read_lists(FiniteQuestion* beside) {
  UnreadLists unread = std::exchange(unread_, {});
  std::vector<Choice*> choices;
  for (Choice& choice : unread.choices) {
    choice.out->there.clear();
    choice.out->heads.clear();
    choices.push_back(&choice);
  }
  bool are_good = false;
  try {
    are_good =
        caller_.read_lists(unread.selector, input_of(unread.pass, choices), unread.answer, beside)
            .empty();
    if (are_good)
      for (size_t i = 0; i < choices.size(); ++i)
        take(unread.selector, unread.answer.lists, static_cast<uint32_t>(i), *choices[i]);
    else
      take_each(unread, choices);
    caller_.take_back(std::move(unread.answer.lists));
  } catch (const PluginError&) {  // of scores that are not finite, say: select() finds whose
    for (Choice* choice : choices) ask_here(unread.selector, unread.pass, {choice});
  }
  for (Choice& choice : unread.choices) choice.finish(counters(choice));
  return are_good;
}

void SelectStage::take_each(const UnreadLists& unread, const std::vector<Choice*>& choices) {
  const Selector& selector = *c_.pipeline.selectors[unread.selector];
  for (size_t i = 0; i < choices.size(); ++i) {
    const ListBuffer lists =
        lists_of(unread.answer.lists, static_cast<uint32_t>(i), c_.geometry.n_kv_heads);
    const std::string wrong =
        caller_.check(selector, input_of(unread.pass, {choices[i]}), false, lists);
    if (wrong.empty())
      take(unread.selector, lists, 0, *choices[i]);
    else
      fault(unread.selector, "select", unread.pass.layer, {choices[i]}, wrong);
  }
}

}  // namespace kvasir
