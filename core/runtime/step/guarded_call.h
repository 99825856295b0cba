// Calls of plugins, and whom their failure concerns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Leases for each piece the blocks of the layer that needs_of(i, list) says; a piece whose blocks
// cannot be had ends.
template <class NeedsOf>
void lease(const RunContext& c, const Pass& pass, NeedsOf&& needs_of) {
  if (!c.store.moves()) return;
  std::vector<ListNeeds> needs;
  for (uint32_t i = 0; i < pass.pieces.size(); ++i)
    needs.push_back(needs_of(i, pass.pieces[i].seq->layers[pass.layer]));
  together_or_alone(pass.pieces, needs, [&](auto some) { c.store.make_resident(some); });
}

// blocks: [pieces].
inline void lease_blocks(const RunContext& c, const Pass& pass,
                         const std::vector<std::vector<uint32_t>>& blocks) {
  lease(c, pass, [&](uint32_t i, BlockList& list) { return c.store.needs_of(list, blocks[i]); });
}

inline void lease_all(const RunContext& c, const Pass& pass) {
  lease(c, pass, [&](uint32_t, BlockList& list) { return c.store.needs_all(list); });
}

// Why a call failed, for a line that names the plugin that was called, layer and sequence: what it
// asked for may have failed in another plugin.
inline std::string reason_beside(const PluginError& error, const std::string& called) {
  if (error.plugin() == called) return error.reason();
  return error.plugin() + ": " + error.function() + ": " + error.reason();
}

// What a status that is neither OK nor expected says; empty for OK.
inline std::string fault_of(kvasir_status status) {
  return status == KVASIR_OK ? "" : "returned status " + std::to_string(status);
}

// Calls fn() unless the selector was put aside. fn returns what is wrong, or an empty text; that,
// or a PluginError it throws, is the selector's fault. The call is not made again for one sequence
// at a time: what it has done already is unknown. `instead`: how the step goes on.
template <class Fn>
void guard_selector(const RunContext& c, const Selector& selector, const char* function,
                    const Pass& pass, const char* instead, Fn&& fn) {
  const size_t index = c.index_of(selector);
  if (c.faults.is_aside(index)) return;
  std::string fault;
  try {
    fault = fn();
  } catch (const PluginError& e) {
    fault = reason_beside(e, selector.id());
  }
  if (fault.empty()) return;
  guard_pieces(pass.pieces, [&] {  // on_fault = fail throws
    c.faults.report(index, function, pass.layer, pass.pieces[0].seq->id, fault, instead);
  });
}

}  // namespace kvasir
