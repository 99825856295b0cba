// See task_list.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/task_list.h"

#include <algorithm>

#include "core/config/strategy.h"
#include "core/error.h"

namespace kvasir {
namespace {

using J = Judging;
using S = Scorer;

const std::vector<TaskInfo> kList = {
    {Task::kPasskey, "passkey", J::kTokens, S::kPasskey, "a number of 5 digits, said once"},
    {Task::kNumberString, "number_string", J::kTokens, S::kPasskey,
     "a number of 10 digits, five of them doubled"},
    {Task::kNeedle, "needle", J::kTokens, S::kStringAll, "the code of one thing"},
    {Task::kNeedleMultiKey, "needle_multi_key", J::kTokens, S::kStringAll,
     "the code of one of several things with like names"},
    {Task::kNeedleMultiValue, "needle_multi_value", J::kTokens, S::kStringAll,
     "all codes of one thing"},
    {Task::kNeedleMultiQuery, "needle_multi_query", J::kTokens, S::kStringAll,
     "the codes of several things, asked one after another"},
    {Task::kKvRetrieval, "kv_retrieval", J::kTokens, S::kKvRetrieval,
     "the value of a key of several words, among many"},
    {Task::kMqar, "mqar", J::kTokens, S::kStringAll, "all pairs of words, asked in another order"},
    {Task::kVariableTracking, "variable_tracking", J::kTokens, S::kStringAll,
     "the value of a variable, over a chain of assignments"},
    {Task::kFiller, "filler", J::kTokens, S::kExact, "nothing: prose alone"},
    {Task::kRepeat, "repeat", J::kTokens, S::kExact, "the words of the context once more"},
    {Task::kChunkChain, "chunk_chain", J::kTokens, S::kStringAll,
     "what two statements in chunks of their own say together"},
    {Task::kChunkBorder, "chunk_border", J::kTokens, S::kStringAll,
     "a code that stands across the border of two chunks"},
    {Task::kCommonWords, "common_words", J::kText, S::kStringAll,
     "the words that a numbered list holds most often"},
    {Task::kFrequentWords, "frequent_words", J::kText, S::kStringAll,
     "the three most frequent coded words of a text"},
    {Task::kFactsCount, "facts_count", J::kText, S::kFirstNumber,
     "how many people own a thing, of facts all over the text"},
    {Task::kFactsMost, "facts_most", J::kText, S::kStringAll, "who owns most of a thing"},
    {Task::kFactsSum, "facts_sum", J::kText, S::kFirstNumber,
     "how many of a thing two people own together"},
    {Task::kMultiTurn, "multi_turn", J::kText, S::kStringAll,
     "codes in turn, and last of all the one that was asked for first"},
    {Task::kUuidRetrieval, "uuid_retrieval", J::kText, S::kEighths,
     "the UUID of a UUID in a JSON object, judged by the eighths of it"},
    {Task::kToolCall, "tool_call", J::kText, S::kJsonObject,
     "a JSON object whose form the context's start prescribes"},
    {Task::kNeedleZh, "needle_zh", J::kText, S::kStringAll, "needle, in Chinese"},
};

}  // namespace

const char* name(Judging judging) { return judging == Judging::kTokens ? "tokens" : "text"; }

const std::vector<TaskInfo>& task_list() { return kList; }

const TaskInfo& info(Task task) {
  return *std::find_if(kList.begin(), kList.end(),
                       [&](const TaskInfo& entry) { return entry.task == task; });
}

const char* name(Task task) { return info(task).name; }

std::vector<Task> all_tasks() {
  std::vector<Task> tasks;
  for (const TaskInfo& entry : kList) tasks.push_back(entry.task);
  return tasks;
}

// They stand first in the list.
std::vector<Task> question_tasks() {
  std::vector<Task> tasks = all_tasks();
  tasks.erase(std::find(tasks.begin(), tasks.end(), Task::kFiller), tasks.end());
  return tasks;
}

Task task_by_name(const std::string& text, const std::string& flag) {
  std::vector<std::string> names;
  for (const TaskInfo& entry : kList) {
    if (text == entry.name) return entry.task;
    names.emplace_back(entry.name);
  }
  const std::string near = nearest_name(text, names);
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  throw input_error(flag + ": unknown task '" + text + "'" +
                    (near.empty() ? "" : "; did you mean '" + near + "'?") + " (" + list + ")");
}

}  // namespace kvasir
