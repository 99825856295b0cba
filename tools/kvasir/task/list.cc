// kvasir task list: the tasks that can be made.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <memory>

#include "core/task/task_list.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

struct TaskTable {};

Json to_json(const TaskTable&) {
  Json out = Json::array();
  for (const TaskInfo& task : task_list())
    out.push_back({{"task", task.name},
                   {"judged_by", name(task.judging)},
                   {"scorer", name(task.scorer)},
                   {"asks", task.summary}});
  return out;
}

std::string to_text(const TaskTable&) {
  Table table({"task", "judged by", "scorer of texts", "asks for"});
  for (const TaskInfo& task : task_list())
    table.add({task.name, name(task.judging), name(task.scorer), task.summary});
  return table.text();
}

}  // namespace

void add_task_list(CLI::App& task) {
  auto* c = task.add_subcommand("list", "The tasks that can be made, and how they are judged");
  auto json = std::make_shared<bool>(false);
  add_json(*c, *json);
  c->footer("What each looks like, with a command and what models make of it: docs/tasks.md.");
  c->callback([=] { print(TaskTable{}, *json); });
}

}  // namespace kvasir::tool
