// A sample put to a model: greedy answers, exactly right or not, and intervals of a share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/runtime/engine.h"
#include "core/task/task.h"

namespace kvasir {

// A sample is right when every answer token of every turn is the model's most likely one: that is
// what greedy decoding would have to give, no more and no less. Each step is fed the expected
// token, which changes nothing for a right answer, and lets a later turn not suffer from an earlier
// one.
struct TaskAnswer {
  bool correct = false;
  uint32_t n_tokens = 0, n_right = 0;  // of all answers
  std::vector<std::string> given;      // per turn, what the model preferred
};

struct AnswerOptions {
  // The first question is part of the prompt. By default the prompt is the context alone and the
  // question's tokens are decoded like the answer's: what a strategy does when it does not know the
  // question beforehand, and does in decode only, is then what is measured.
  bool question_in_prompt = false;
  // Heard when the logits at hand predict answer token `token` of `turn`: the step just made is what
  // the answer was found by.
  std::function<void(SequenceId seq, size_t turn, size_t token)> on_answer_step;
};

// Error(kInput) when the sample asks nothing.
TaskAnswer answer_task(Engine& engine, const Tokenizer& tokenizer, uint32_t vocab_size,
                       const Sample& sample, const AnswerOptions& options = {});

struct Interval {
  double low = 0, high = 1;
};
// Of the share n_right / n, 95 %: Wilson 1927.
Interval wilson_interval(uint64_t n_right, uint64_t n);

}  // namespace kvasir
