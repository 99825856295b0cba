// Retrieval tasks made from a seed: a context with something planted in it, and questions whose
// answers stand nowhere else. Training, evaluation and comparisons use this one generator.
//
// A sample is one text: sentences of filler and planted statements, then one or several turns of
// question and answer, a line each. Answers are what greedy decoding must give after the question.
//
//   passkey            The pass key is 73914. Remember it.       5 digits
//   number_string      The sequence of digits is 4411387720. Remember it.      10 digits, of 5 that
//                      then duplicate a neighbour five times
//   needle             The code of the quiet harbor is 4821937.  7 digits
//   needle_multi_key   several needles of the same form, half of them sharing a word with the one
//                      asked for
//   needle_multi_value several codes of one thing, asked for in the order of the text
//   needle_multi_query several needles, asked for one after another
//   kv_retrieval       lines `key amber river stone lake=48213`, asked by `get amber river … =`
//   mqar               lines `pair amber: river`, then all asked by `recall amber:` in other order
//   variable_tracking  Set lamp to 48213. Set coat to lamp. …    what is the value of the last one
//   filler             prose alone, no question
//   repeat             random words, and the same words again as the answer
// The context of two more is made of chunks, as retrieved documents are put together in some order:
//   chunk_chain        The baker has the amber key. … The amber key opens with 48213.   both asked
//                      for at once; each statement stands in a chunk of its own, in any order
//   chunk_border       needles, one across each border: a chunk ends with `The code of the quiet
//                      harbor is`, the next begins with ` 4821937.`
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/task/piece_encoder.h"
#include "core/task/random.h"

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
};
const char* name(Task task);
std::vector<Task> all_tasks();
// Those with an answer to be right about, and no chunks.
std::vector<Task> question_tasks();
// Error(kInput) naming `flag` and the nearest task.
Task task_by_name(const std::string& text, const std::string& flag);

struct Range {  // both ends included; {0, 0}: the task's own
  uint32_t first = 0, last = 0;
  bool given() const { return last != 0; }
};

struct TaskOptions {
  Range key_tokens;     // kv_retrieval 4-8, mqar 1; in tokens of the tokenizer used
  Range value_tokens;   // kv_retrieval 4-8, mqar 1
  Range pairs;          // kv_retrieval: as many as fit; mqar 8; multi-key, -value and -query 4
  Range queries;        // kv_retrieval 1; mqar and multi-query: all
  Range hops;           // variable_tracking 2
  uint32_t chains = 2;  // variable_tracking, chunk_chain: the one asked for, and others like it
  uint32_t chunks = 8;  // of the context of chunk_chain and chunk_border
};

struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct Turn {
  Span question;  // bytes of the text; the answer follows, then a line end
  Span answer;
};

// A statement that was planted. Distractors, asked for by no turn, have turn -1.
struct Planted {
  Span bytes;        // the statement
  Span value;        // what is to be found in it
  int turn = -1;     // the question it answers (chains: helps to answer)
  double depth = 0;  // first token, as a share of the prompt's tokens
};

struct Sample {
  Task task = Task::kFiller;
  uint64_t seed = 0, index = 0;
  std::string text;
  EncodedText tokens;  // of the text, with BOS where the vocabulary wants one
  std::vector<Planted> planted;
  std::vector<Turn> turns;
  // Bytes of the context's chunks, side by side up to the first question; empty: it has none.
  std::vector<Span> chunks;

  // Tokens of chunk i, which are those of the text: ids[begin, end).
  Span chunk_tokens(size_t i) const;
  // Up to the first answer; the whole text when there is no question.
  std::string prompt() const;
  std::string bytes(const Span& span) const {
    return text.substr(span.begin, span.end - span.begin);
  }
  // The tokens that hold any byte of the span.
  Span token_span(const Span& bytes) const;
};

class TaskGenerator {
 public:
  // `length`: the text's tokens including BOS and answers; filler is added until no further
  // sentence fits. Error(kInput) with the minimum when the task does not fit into it.
  TaskGenerator(Task task, const TaskOptions& options, uint32_t length, PieceEncoder& encoder);
  Sample make(uint64_t seed, uint64_t index);
  Task task() const { return task_; }

 private:
  Task task_;
  TaskOptions options_;
  uint32_t length_;
  PieceEncoder& encoder_;
};

}  // namespace kvasir
