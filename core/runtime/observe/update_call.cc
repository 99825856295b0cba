// Calls of update(); see update_call.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/update_call.h"

#include <cstddef>
#include <memory>

#include "core/runtime/blocks/memory_kinds.h"
#include "core/runtime/step/guarded_call.h"
#include "core/runtime/step/step_builder.h"

namespace kvasir {
namespace {

struct HostCopies {
  std::unique_ptr<std::byte[]> bytes;
  std::vector<kvasir_lease> leases;
};

// What the owner reads of an item's block.
kvasir_token_span read_of(const SlabOwner& owner, const kvasir_update_item& item) {
  if (!(owner.layout.flags & KVASIR_LAYOUT_READS_NEW) ||
      item.flags & (KVASIR_ITEM_PROMPT_END | KVASIR_ITEM_FINAL))
    return {item.lease, 0, item.n_tokens};
  return {item.lease, item.first_new, item.n_new};
}

void copy_unreadable(const BlockStore& store, const SlabOwner& owner,
                     std::vector<kvasir_update_item>& items, HostCopies& copies) {
  if (owner.selector && !reads_keys(*owner.selector)) return;
  std::vector<kvasir_token_span> tokens;
  std::vector<kvasir_update_item*> of;
  for (kvasir_update_item& item : items) {
    if (can_read(owner.plugin(), store.formats()[item.lease->format])) continue;
    tokens.push_back(read_of(owner, item));
    of.push_back(&item);
  }
  if (tokens.empty()) return;
  copies.leases = store.copy_to_host(tokens, copies.bytes);
  for (size_t i = 0; i < of.size(); ++i) of[i]->lease = &copies.leases[i];
}

}  // namespace

void send_update(const RunContext& c, const SlabOwner& owner, const Pass& pass, uint32_t moment,
                 std::vector<kvasir_update_item> items) {
  if (items.empty()) return;
  if (owner.selector ? c.faults.is_aside(c.index_of(*owner.selector))
                     : c.faults.representative_failed())
    return;
  HostCopies copies;
  copy_unreadable(c.store, owner, items, copies);
  Pass quiet = pass;  // no queries: candidates are those at kv_len
  for (Piece& piece : quiet.pieces) piece.q_begin = piece.n_q = 0;
  const StepBuilder step(c, moment, quiet, owner.unit(), &owner);
  if (owner.selector)
    return guard_selector(c, *owner.selector, "update", pass, "going on without it",
                          [&] { return fault_of(owner.update(step.step(), items)); });
  try {
    owner.update(step.step(), items);
  } catch (const PluginError& e) {
    guard_pieces(pass.pieces, [&] { c.faults.report_representative(e); });
  }
}

}  // namespace kvasir
