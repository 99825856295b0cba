// Giving back the memory of evicted tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "core/runtime/step/run_context.h"

namespace kvasir {

// Frees the blocks of `among` none of whose tokens is alive in any head.
void free_dead_blocks(const RunContext& context, LayerState& state,
                      const std::set<uint32_t>& among);

// What closes the gaps that eviction left below the window, as soon as that frees memory. The
// border moves on with the window, so a plan that drops a token per step copies once per block of
// steps.
std::optional<BlockStore::Packing> packing_of(const RunContext& context, const Sequence& seq,
                                              LayerState& state, uint32_t layer, uint32_t kv_len);

}  // namespace kvasir
