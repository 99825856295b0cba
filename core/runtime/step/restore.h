// The start of a prompt whose blocks a storage kept from earlier sequences, also of other
// processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/runtime/step/strategy_run.h"

namespace kvasir {

// Gives an empty sequence the longest run of blocks from the start of `tokens` that the storage has
// in every layer, but not the last token. Returns how many tokens it holds now. max_step_tokens: of
// the engine. When it throws, the sequence can only be closed.
uint32_t restore_prefix(StrategyRun& run, Sequence& seq, std::span<const int32_t> tokens,
                        uint32_t max_step_tokens);

}  // namespace kvasir
