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
// Of how many tokens it finds multiples.
uint32_t restore_unit(const StrategyRun& run, uint32_t max_step_tokens);
// restore_prefix() a layer at a time: the first one. seq.awaited names the blocks that it has.
uint32_t restore_first_layer(StrategyRun& run, Sequence& seq, std::span<const int32_t> tokens,
                             uint32_t max_step_tokens);
// The blocks that seq.awaited names, unless they are there. False: not all were found, none is
// held.
bool restore_layer(StrategyRun& run, Sequence& seq, uint32_t layer);
// Makes a sequence that has all layers what restore_prefix() makes of it.
void hold_restored(StrategyRun& run, Sequence& seq);
// Gives an empty sequence the blocks of `from`, if that was restored for a prompt with this start
// and has read nothing since: then one of them can read the rest for both. from_run can lead `run`.
// Returns how many tokens it holds now, 0 where `from` is no such sequence.
uint32_t share_restored(const StrategyRun& from_run, const Sequence& from, StrategyRun& run,
                        Sequence& seq, std::span<const int32_t> tokens);

}  // namespace kvasir
