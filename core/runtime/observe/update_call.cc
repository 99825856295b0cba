// Calls of update(); see update_call.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/observe/update_call.h"

#include <cstddef>
#include <deque>

#include "core/runtime/blocks/memory_kinds.h"
#include "core/runtime/step/guarded_call.h"
#include "core/runtime/step/step_builder.h"

namespace kvasir {
namespace {

struct HostCopies {
  std::deque<std::vector<std::byte>> bytes;
  std::deque<kvasir_lease> leases;
};

void copy_unreadable(const BlockStore& store, const Instance& reader,
                     std::vector<kvasir_update_item>& items, HostCopies& copies) {
  if (!store.has_window()) return;
  for (kvasir_update_item& item : items) {
    if (!store.in_window(*item.lease)) continue;
    if (can_read(reader, store.formats()[item.lease->format])) continue;
    copies.leases.push_back(store.copy_to_host(*item.lease, copies.bytes.emplace_back()));
    item.lease = &copies.leases.back();
  }
}

}  // namespace

void send_update(const RunContext& c, const SlabOwner& owner, const Pass& pass, uint32_t moment,
                 std::vector<kvasir_update_item> items) {
  if (items.empty()) return;
  HostCopies copies;
  copy_unreadable(c.store, owner.plugin(), items, copies);
  Pass quiet = pass;  // no queries: candidates are those at kv_len
  for (Piece& piece : quiet.pieces) piece.q_begin = piece.n_q = 0;
  const StepBuilder step(c, moment, quiet, owner.unit(), &owner);
  if (owner.selector)
    return guard_selector(c, *owner.selector, "update", pass, "going on without it",
                          [&] { return fault_of(owner.update(step.step(), items)); });
  if (c.faults.representative_failed()) return;
  try {
    owner.update(step.step(), items);
  } catch (const PluginError& e) {
    guard_pieces(pass.pieces, [&] { c.faults.report_representative(e); });
  }
}

}  // namespace kvasir
