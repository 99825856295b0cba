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
// Answers to these are written freely and scored (Grading), because they may be partly right:
//   common_words       1. lamp 2. stone 3. lamp …   which words stand there most often (RULER's
//   cwe) frequent_words     qhbtzu ... wpdksa ...        likewise, of coded words (RULER's fwe)
//   facts_count, facts_most, facts_sum     The baker owns 37 ropes.   how many people own ropes,
//                      who owns most of them, how many do two own together
//   multi_turn         needles, asked for one after another, and last: which code came first
//   uuid_retrieval     {"0f3c…": "9d1e…", …}        as InfiniteBench's kv_retrieval
//   tool_call          The tool use_lamp takes one JSON object: {"red_hall": integer, …}   at the
//                      start; asked for with values, without keys
//   needle_zh          安静的港口的密码是4821937。
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
#include "core/task/task_list.h"

namespace kvasir {

struct Range {  // both ends included; {0, 0}: the task's own
  uint32_t first = 0, last = 0;
  bool given() const { return last != 0; }
};

struct TaskOptions {
  Range key_tokens;    // kv_retrieval 4-8, mqar 1; in tokens of the tokenizer used
  Range value_tokens;  // kv_retrieval 4-8, mqar 1
  // Keys, words, facts or tools. kv_retrieval, uuid_retrieval: as many as fit; mqar 8; multi-key,
  // -value and -query 4; common_words 10; facts 8; multi_turn, tool_call 3; frequent_words: the
  // vocabulary, a fiftieth of the length
  Range pairs;
  Range queries;        // kv_retrieval 1; mqar and multi-query: all
  Range hops;           // variable_tracking 2
  uint32_t chains = 2;  // variable_tracking, chunk_chain: the one asked for, and others like it
  uint32_t chunks = 8;  // of the context of chunk_chain and chunk_border
  // Of the statement that answers, as shares of the filler before it: sample i has number i modulo
  // their number. Empty: anywhere.
  std::vector<double> depths{};
};

struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct Turn {
  Span question;  // bytes of the text; the answer follows, then a line end
  Span answer;
  std::vector<std::string> references{};  // what a scorer compares a given answer with
};

// How an answer that a model writes freely is judged.
struct Grading {
  Scorer scorer = Scorer::kExact;
  uint32_t max_new_tokens = 64;    // of one answer
  std::vector<std::string> stops;  // texts that end an answer, and are no part of it
  bool operator==(const Grading&) const = default;
};

// A statement that was planted. Distractors, asked for by no turn, have turn -1.
struct Planted {
  Span bytes;        // the statement
  Span value;        // what is to be found in it
  int turn = -1;     // the question it answers (chains: helps to answer)
  double depth = 0;  // first token, as a share of the prompt's tokens
};

struct Sample {
  Task task = Task::kFiller;  // none of ours, when `label` is another name
  std::string label;          // what reports call the task: name(task), or a file's own name
  uint64_t seed = 0, index = 0;
  Grading grading;
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
