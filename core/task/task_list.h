// The tasks by name, and how each is judged; task.h shows what they look like.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/task/scorers.h"

namespace kvasir {

enum class Task : uint8_t {
  kPasskey,
  kNumberString,
  kNeedle,
  kNeedleMultiKey,
  kNeedleMultiValue,
  kNeedleMultiQuery,
  kKvRetrieval,
  kMqar,
  kVariableTracking,
  kFiller,
  kRepeat,
  kChunkChain,
  kChunkBorder,
  kCommonWords,
  kFrequentWords,
  kFactsCount,
  kFactsMost,
  kFactsSum,
  kMultiTurn,
  kUuidRetrieval,
  kToolCall,
  kNeedleZh,
};

// How an answer is judged.
enum class Judging : uint8_t {
  kTokens,  // each expected token must be the most likely one; the expected ones are fed
  kText,    // the model writes freely and greedily; a scorer compares the text
};
const char* name(Judging judging);  // "tokens", "text"

struct TaskInfo {
  Task task;
  const char* name;
  Judging judging;  // unless told otherwise
  Scorer scorer;    // of written answers
  const char* summary;
};
const TaskInfo& info(Task task);
const std::vector<TaskInfo>& task_list();

const char* name(Task task);
std::vector<Task> all_tasks();
// What `all` stands for: those that ask one thing of a document in the form of statements.
std::vector<Task> question_tasks();
// Error(kInput) naming `flag` and the nearest task.
Task task_by_name(const std::string& text, const std::string& flag);

}  // namespace kvasir
