// See shared_prompt.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/shared_prompt.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {

std::vector<std::vector<StrategyId>> prompt_groups(const Engine& engine, uint32_t n_strategies) {
  std::vector<std::vector<StrategyId>> groups;
  for (StrategyId strategy = 0; strategy < n_strategies; ++strategy) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& others) {
      return engine.can_follow(others[0], strategy);
    });
    if (group == groups.end())
      groups.push_back({strategy});
    else
      group->push_back(strategy);
  }
  return groups;
}

std::vector<ReadPrompt> read_prompt(Scheduler& scheduler, const std::vector<StrategyId>& group,
                                    const std::vector<TokenId>& prompt, uint32_t max_new_tokens,
                                    const std::string& label) {
  ProgressBar bar(label);
  std::vector<ReadPrompt> read(group.size());
  std::vector<RequestId> read_by(group.size());
  std::vector<Request> requests(group.size());
  std::exception_ptr error;
  for (size_t i = 0; i < group.size(); ++i) {
    requests[i].strategy = group[i];
    requests[i].max_new_tokens = max_new_tokens;
    requests[i].keep = true;
    requests[i].on_prompt_end = [&read, i](std::span<const float> logits) {
      read[i].logits.assign(logits.begin(), logits.end());
    };
    requests[i].on_end = [&read, &read_by, &error, i](const RequestStatus& status) {
      read[i].seq = status.seq;
      read[i].restored_tokens = status.restored_tokens;
      read_by[i] = status.prompt_read_by;
      if (status.error) error = status.error;
    };
  }
  requests[0].prompt = prompt;
  requests[0].on_progress = [&](uint32_t done, uint32_t total) { bar.update(done, total); };
  const std::vector<RequestId> ids = scheduler.submit_together(std::move(requests));
  run_to_end(scheduler, error);
  for (size_t i = 0; i < group.size(); ++i)
    read[i].read_by =
        group[static_cast<size_t>(std::find(ids.begin(), ids.end(), read_by[i]) - ids.begin())];
  return read;
}

void run_to_end(Scheduler& scheduler, const std::exception_ptr& error) {
  while (scheduler.step()) stop_if_interrupted();
  if (error) std::rethrow_exception(error);
  if (scheduler.n_running() > 0)
    throw Error(ErrorKind::kInternal, "the scheduler has nothing to do, but a request is left");
  if (scheduler.n_queued() > 0)
    throw Error(ErrorKind::kResource,
                "the strategies' sequences do not fit into memory side by side: give fewer "
                "strategies or fewer tokens, or see `kvasir plan`");
}

}  // namespace kvasir::tool
