// A sample put to a model: greedy answers, exactly right or not.
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

// A sample is right when every answer token of every turn is the model's most likely one: that is
// what greedy decoding would have to give, no more and no less. Each step is fed the expected
// token, which changes nothing for a right answer, and lets a later turn not suffer from an earlier
// one.
struct TaskAnswer {
  struct Turn {
    uint32_t n_tokens = 0, n_right = 0;  // of its answer
    bool correct() const { return n_tokens > 0 && n_right == n_tokens; }
  };
  bool correct = false;
  uint32_t n_tokens = 0, n_right = 0;  // of all answers
  std::vector<Turn> turns;
  std::vector<std::string> given;  // per turn, what the model preferred
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

// Tokens of the sample that are its prompt: the context alone, unless `with_question`; what is left
// of the question is decoded like the answer, so that a strategy that works in decode meets the
// question there, and cannot know it beforehand. Error(kInput) when the sample asks nothing.
size_t prompt_tokens(const Sample& sample, bool with_question = false);

// The sample as a request of a scheduler; `answered` gets the answer when it is done, and how the
// request ended.
Request task_request(const Tokenizer& tokenizer, const Sample& sample, StrategyId strategy,
                     bool with_question,
                     std::function<void(const TaskAnswer&, const RequestStatus&)> answered);

}  // namespace kvasir
