// A sample put to a model: greedy answers, compared token by token or scored as text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"
#include "core/serving/request.h"
#include "core/task/task.h"

namespace kvasir {

// By tokens (Judging::kTokens) a sample is right when every answer token of every turn is the
// model's most likely one: that is what greedy decoding would have to give, no more and no less.
// Each step is fed the expected token, which changes nothing for a right answer, and lets a later
// turn not suffer from an earlier one.
//
// By text (Judging::kText) the model writes, greedily, until a stop text of the sample's grading,
// the end of the text or max_new_tokens; the scorer compares. What it wrote stays in the context of
// later turns, right or not.
struct TaskAnswer {
  struct Turn {
    uint32_t n_tokens = 0, n_right = 0;  // of its answer
    bool correct() const { return n_tokens > 0 && n_right == n_tokens; }
  };
  bool correct = false;                // the score is 1
  double score = 0;                    // the mean of the turns' scores, 0 … 1
  uint32_t n_tokens = 0, n_right = 0;  // of all answers; by text as many as were written, and 0
  std::vector<Turn> turns;             // by tokens
  std::vector<std::string> given;      // per turn, what the model preferred, or wrote
  std::vector<double> scores;          // per turn
};

// Judges the answers of one sample, token by token, and says which token comes next. Sample and
// tokenizer must outlive it.
class AnswerJudge {
 public:
  // `next`: the first token of the sample that is not read yet.
  AnswerJudge(const Tokenizer& tokenizer, const Sample& sample, size_t next);
  // The token to decode after these logits [vocab]; none when nothing more is predicted.
  std::optional<TokenId> next(std::span<const float> logits);
  // Complete once next() gave none.
  const TaskAnswer& answer() const { return answer_; }

 private:
  const Tokenizer& tokenizer_;
  const Sample& sample_;
  size_t next_, turn_ = 0;
  TaskAnswer answer_;
};

// Lets a model write its answers to one sample. Sample and tokenizer must outlive it.
class AnswerWriter {
 public:
  // `next`: the first token of the sample that is not read yet; none of an answer may be read.
  AnswerWriter(const Tokenizer& tokenizer, const Sample& sample, size_t next);
  // As of AnswerJudge.
  std::optional<TokenId> next(std::span<const float> logits);
  const TaskAnswer& answer() const { return answer_; }

 private:
  std::optional<TokenId> end_turn();
  std::optional<TokenId> take_forced();

  const Tokenizer& tokenizer_;
  const Sample& sample_;
  size_t next_, forced_end_;  // tokens of the sample that are fed next
  size_t turn_ = 0;
  std::optional<TokenId> last_;  // written, and fed before the next question
  uint32_t turn_tokens_ = 0;
  TaskAnswer answer_;
};
// Tokens of context that the sample needs at most, judged so.
uint32_t context_tokens(const Sample& sample, Judging judging);

// Tokens of the sample that are its prompt: the context alone, unless `with_question`; what is left
// of the question is decoded like the answer, so that a strategy that works in decode meets the
// question there, and cannot know it beforehand. Error(kInput) when the sample asks nothing.
size_t prompt_tokens(const Sample& sample, bool with_question = false);

// The sample as a request of a scheduler; `answered` gets the answer when it is done, and how the
// request ended.
Request task_request(const Tokenizer& tokenizer, const Sample& sample, StrategyId strategy,
                     bool with_question,
                     std::function<void(const TaskAnswer&, const RequestStatus&)> answered,
                     Judging judging = Judging::kTokens);

}  // namespace kvasir
