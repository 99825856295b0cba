// A prompt read for several strategies of one engine, once for those that read it alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "core/serving/scheduler.h"

namespace kvasir::tool {

// Strategies [0, n_strategies) of the engine in groups that can read a prompt together. The first
// of a group leads; groups and their members ascend.
std::vector<std::vector<StrategyId>> prompt_groups(const Engine& engine, uint32_t n_strategies);

struct ReadPrompt {
  // The caller's: to be given to a request that goes on with it, or to Scheduler::close().
  SequenceId seq = 0;
  StrategyId read_by = 0;        // whose sequence read the prompt: its own or one that it followed
  uint32_t restored_tokens = 0;  // found in the storage's store, not read
  std::vector<float> logits;     // [vocab], of the prompt's last token
};
// The prompt for each strategy of a group, with memory counted for max_new_tokens behind it;
// [group]. `label` stands before the progress. Throws the error of any of them.
std::vector<ReadPrompt> read_prompt(Scheduler& scheduler, const std::vector<StrategyId>& group,
                                    const std::vector<TokenId>& prompt, uint32_t max_new_tokens,
                                    const std::string& label);

// Steps until there is nothing to do, then throws `error`, which callbacks may have set until then.
// Error(kResource) when a request waits for memory that sequences of the caller hold.
void run_to_end(Scheduler& scheduler, const std::exception_ptr& error);

}  // namespace kvasir::tool
