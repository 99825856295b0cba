// Looking up what belongs to a plugin; see run_context.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/run_context.h"

namespace kvasir {

size_t RunContext::index_of(const Selector& selector) const {
  size_t index = 0;
  while (pipeline.selectors[index].get() != &selector) ++index;
  return index;
}

const SlabOwner* RunContext::owner_of(const Selector* selector) const {
  for (const SlabOwner& owner : owners)
    if (owner.selector == selector) return &owner;
  return nullptr;
}

bool RunContext::selects_in_prefill() const {
  for (const auto& selector : pipeline.selectors)
    if (selector->limits().flags & KVASIR_LIMIT_PREFILL_SELECT) return true;
  return false;
}

// Prompts that are read densely need every block alike.
bool RunContext::heats_by_mass(bool prefills) const {
  return store.heat_wanted() == KVASIR_HEAT_MASS && (!prefills || selects_in_prefill());
}

uint32_t RunContext::forced_unit() const {
  const auto& selectors = pipeline.selectors;
  const bool in_tokens = selectors.size() == 1 && selectors[0]->limits().unit == KVASIR_UNIT_TOKEN;
  return in_tokens ? KVASIR_UNIT_TOKEN : KVASIR_UNIT_BLOCK;
}

}  // namespace kvasir
