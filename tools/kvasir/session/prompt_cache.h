// A prompt that was read, kept in a file: its sequence and its logits. The next run need not read
// it again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/runtime/engine.h"

namespace kvasir::tool {

struct CachedPrompt {
  SequenceId seq = 0;
  uint32_t n_tokens = 0;  // of the prompt, from its start, that need not be read again
};

// Loads the sequence of `path` and truncates it to the tokens it shares with `prompt`. Opens a new
// sequence when there is no such file. Writes `logits`, those of the last token, only when file and
// prompt are the same tokens. Throws an Error when the file is damaged or belongs to another model
// or strategy; when less than half of its tokens are shared; or when it would be truncated and a
// plugin of the strategy keeps state that the removed tokens changed.
CachedPrompt restore_prompt(Engine& engine, const std::string& path,
                            std::span<const TokenId> prompt, std::span<float> logits);

// Call it before the prompt is read. Throws an Error when the strategy cannot be saved or `path`
// cannot be written.
void check_savable(Engine& engine, SequenceId seq, const std::string& path);

// Replaces `path` once all bytes are written. Throws an Error with the system's reason.
void save_prompt(Engine& engine, SequenceId seq, std::span<const float> logits,
                 const std::string& path);

}  // namespace kvasir::tool
