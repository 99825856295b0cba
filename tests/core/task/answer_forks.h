// A sample's prompt read once, and answered on several forks of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/runtime/engine.h"
#include "core/task/evaluate.h"

namespace kvasir::test {

struct TaskPrompt {
  SequenceId seq = 0;
  size_t next = 0;            // first token not in the sequence
  std::vector<float> logits;  // that predict it
};

// Error(kInput) when the sample asks nothing.
inline TaskPrompt prefill_task(Engine& engine, const Sample& sample) {
  TaskPrompt prompt;
  prompt.next = prompt_tokens(sample);
  prompt.logits.resize(engine.vocab_size());
  prompt.seq = engine.open();
  engine.prefill(prompt.seq, std::span(sample.tokens.ids).first(prompt.next), prompt.logits);
  return prompt;
}

// on_predicted: called after each step that an answer token was found by.
inline TaskAnswer answer_fork(Engine& engine, const Tokenizer& tokenizer, const Sample& sample,
                              const TaskPrompt& prompt,
                              const std::function<void()>& on_predicted = {}) {
  const SequenceId fork = engine.fork(prompt.seq);
  std::vector<float> logits = prompt.logits;
  AnswerJudge judge(tokenizer, sample, prompt.next);
  uint32_t n_tokens = 0;
  while (const std::optional<TokenId> token = judge.next(logits)) {
    if (on_predicted && judge.answer().n_tokens > n_tokens) on_predicted();
    n_tokens = judge.answer().n_tokens;
    const Engine::DecodeItem item{fork, *token};
    engine.decode({&item, 1}, logits);
  }
  if (on_predicted && judge.answer().n_tokens > n_tokens) on_predicted();
  engine.close(fork);
  return judge.answer();
}

}  // namespace kvasir::test
