// Flags that the task subcommands share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/record.h"
#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

struct TaskFlags {
  std::string tasks;
  std::string key_tokens, value_tokens, pairs, queries, hops, depths;
  uint32_t chains = 2, chunks = 8;
};
void add_task_flags(CLI::App& app, TaskFlags& flags);
TaskOptions task_options(const TaskFlags& flags);
// "passkey,needle" or "all": the tasks in the order of the list.
std::vector<Task> parse_tasks(const std::string& list, const std::string& flag);
// "passkey=1,repeat=3".
std::vector<MixPart> parse_mix(const std::string& list, const std::string& flag);

}  // namespace kvasir::tool
