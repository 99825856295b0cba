// kvasir task: retrieval tasks with known answers.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/commands.h"

namespace kvasir::tool {

void add_task(CLI::App& app) {
  auto* task = app.add_subcommand(
      "task", "Retrieval tasks with known answers: make them, put them to a model");
  task->require_subcommand(1);
  add_task_list(*task);
  add_task_generate(*task);
  add_task_eval(*task);
  add_task_score(*task);
  add_task_blend(*task);
}

}  // namespace kvasir::tool
