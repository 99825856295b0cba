// What each task plants and asks, before it is put into a text of some length.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/task.h"

namespace kvasir {

// Statements and questions carry what separates them from the text before: a space within a
// paragraph, a line end where a line must start.
struct Statement {
  std::string text;
  Span value;     // in text
  int turn = -1;  // see Planted
};
struct Question {
  std::string text;
  std::string answer;
  std::vector<std::string> references{};  // empty: the answer
};
enum class Filler { kEnglish, kChinese, kNone };  // what the text is filled with
struct Script {
  std::vector<Statement> statements;  // in the order in which the text holds them
  std::vector<Question> questions;
  // Of each statement, ascending: the share of the filler before it. Empty: drawn.
  std::vector<double> depths{};
  uint32_t n_chunks = 0;  // 0: the text has no chunks
  Filler filler = Filler::kEnglish;
  bool splits_statements = false;  // chunks end before the values of statements, not evenly
};

// `budget`: tokens at hand for everything, for tasks that fill the text with statements.
Script write_script(Task task, const TaskOptions& options, size_t budget, TaskRandom& random,
                    PieceEncoder& encoder);

}  // namespace kvasir
