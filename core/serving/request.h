// What a scheduler is asked to do with one sequence, and what became of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/engine.h"

namespace kvasir {

using RequestId = uint64_t;

enum class RequestState { kQueued, kPrefilling, kDecoding, kDone, kFailed, kCancelled };
const char* name(RequestState state);  // "queued", "prefilling", …

struct RequestStatus {
  RequestState state = RequestState::kQueued;
  bool is_paused = false;
  SequenceId seq = 0;  // 0 while queued, and when the sequence was closed
  uint32_t prompt_tokens = 0, prompt_done = 0, decoded_tokens = 0;
  uint32_t restored_tokens = 0;  // of the prompt, which the storage had: not computed
  // The request whose sequence read the prompt last: its own, or one that it followed.
  RequestId prompt_read_by = 0;
  uint64_t queued_nanos = 0;  // from submit to the step that took it in
  // Of the steps that it took part in, with all that they did for others.
  uint64_t prefill_nanos = 0, decode_nanos = 0;
  std::exception_ptr error;  // of kFailed
  std::string error_text() const;
};

// The next token to decode, from the logits [vocab] of the last one; none: the request is done.
// What it throws fails the request.
using TokenSource = std::function<std::optional<TokenId>(std::span<const float> logits)>;
// Tokens that stand already, whatever the model says. `seen` gets the logits that follow the prompt
// (after = 0) and those that follow each token; it may be empty.
TokenSource forced_tokens(std::vector<TokenId> tokens,
                          std::function<void(uint32_t after, std::span<const float> logits)> seen);

struct Request {
  StrategyId strategy = 0;
  // Goes on with a sequence of that strategy, which is the request's until it ends. None: a new
  // one.
  std::optional<SequenceId> seq;
  std::vector<TokenId> prompt;
  // Instead of a prompt: logits [vocab] that follow what `seq` holds.
  std::vector<float> logits;
  TokenSource next;             // null: the prompt is read and nothing decoded
  uint32_t max_new_tokens = 0;  // the request is done once it has decoded so many
  // The sequence is left open when the request ends, whatever its end, unless it was lost; see
  // Scheduler::close().
  bool keep = false;
  // The callbacks run inside Scheduler::step() (on_end also inside cancel()). They may submit,
  // pause and cancel.
  std::function<void(uint32_t done, uint32_t total)> on_progress;  // after each piece of the prompt
  std::function<void(std::span<const float> logits)> on_prompt_end;  // [vocab], of its last token
  std::function<void(const RequestStatus&)> on_end;                  // must not throw
};

}  // namespace kvasir
