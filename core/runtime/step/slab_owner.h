// Who keeps records in slabs: the representative, or a selector with a layout.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/plugin/instance.h"
#include "core/runtime/sequence/slab.h"

namespace kvasir {

struct SlabOwner {
  Representative* representative = nullptr;  // one of the two
  Selector* selector = nullptr;
  RecordLayout layout{};
  SlabLayout slab;

  Instance& plugin() const {
    return selector ? static_cast<Instance&>(*selector) : static_cast<Instance&>(*representative);
  }
  uint32_t unit() const {
    return selector ? selector->limits().unit : static_cast<uint32_t>(KVASIR_UNIT_BLOCK);
  }
  bool wants_prompt_end() const {
    return layout.flags & (KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_PROMPT_END_ALL) ||
           (selector && selector->limits().flags & KVASIR_LIMIT_WANT_PROMPT_END);
  }
  kvasir_status update(const kvasir_step& step,
                       const std::vector<kvasir_update_item>& items) const {
    return selector ? selector->update(step, items) : representative->update(step, items);
  }
};

}  // namespace kvasir
