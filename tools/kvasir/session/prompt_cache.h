// A prompt that was read, in a file: sequence and logits, so that the next run starts behind it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/runtime/engine.h"

namespace kvasir::tool {

struct CachedPrompt {
  SequenceId seq = 0;
  uint32_t n_tokens = 0;  // of the prompt, from its start, that need not be read again
};

// The sequence of `path`, cut back to what it shares with `prompt`; a new one when there is no such
// file. `logits`: those of the last shared token, left alone unless all of both is shared. Error
// when the file is damaged, belongs to another model or strategy, or to another prompt (less than
// half of it is shared), or when it would be cut and the strategy keeps what the cut tokens
// decided.
CachedPrompt restore_prompt(Engine& engine, const std::string& path,
                            std::span<const TokenId> prompt, std::span<float> logits);

// Before the prompt is read: error when the strategy cannot be saved, or `path` not be written.
void check_savable(Engine& engine, SequenceId seq, const std::string& path);

// Over what `path` held, once it is written whole. Error with the system's reason.
void save_prompt(Engine& engine, SequenceId seq, std::span<const float> logits,
                 const std::string& path);

}  // namespace kvasir::tool
