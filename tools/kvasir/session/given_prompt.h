// Prompts whose queries, keys and values are given (core/runtime/step/given.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/runtime/engine.h"

namespace kvasir::tool {

// A prompt of n_tokens for sequences that can read it together (Engine::can_follow); the first
// leads. on_progress(done) after each piece; it may throw. Throws the error of any of them.
void give_prompt(Engine& engine, const std::vector<SequenceId>& seqs, uint32_t n_tokens,
                 const GivenProjections& projections, GivenTo given_to,
                 const std::function<void(uint32_t done)>& on_progress);

}  // namespace kvasir::tool
