// Lists that stay on the device where a selector chose: when they may, and what is known of them
// until they are read, which is after attention has begun.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <string>
#include <vector>

#include "core/plugin/pipeline.h"
#include "core/runtime/select/candidates.h"
#include "core/runtime/select/choice.h"
#include "core/runtime/select/selector_call.h"

namespace kvasir {

// Whether the host has nothing to do with what the strategy chooses for decoded tokens before they
// are attended: there is one selector, which chooses blocks by scores that stay on the device; it
// and the backend know lists there; nothing is chosen a layer ahead; and blocks are always where
// they are. formats: of the blocks.
bool lists_can_stay(const Pipeline& pipeline, const kvasir_geometry& geometry,
                    const std::vector<kvasir_kv_format>& formats);

// Of one call of a selector.
struct UnreadLists {
  size_t selector = 0;
  Pass pass;                    // whose pieces are those of the choices
  std::vector<Choice> choices;  // not finished: their selections hold placeholders
  SelectorAnswer answer;        // with offsets and flags
};

// What is wrong with the lengths and flags of lists whose indices are not read yet; or "".
std::string check_lengths(const kvasir_selection& lists, uint64_t max_units, uint32_t n_kv_heads,
                          const std::vector<const Candidates*>& candidates);
// The lists of one sequence, as if it had been asked for alone. Copies.
ListBuffer lists_of(const ListBuffer& all, uint32_t seq, uint32_t n_kv_heads);

}  // namespace kvasir
