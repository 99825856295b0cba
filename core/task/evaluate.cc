// Answering; see evaluate.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/evaluate.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvasir {
TaskPrompt prefill_task(Engine& engine, uint32_t vocab_size, const Sample& sample,
                        bool with_question) {
  if (sample.turns.empty())
    throw input_error(std::string(name(sample.task)) + " asks nothing: choose another task");
  const size_t question = sample.token_span(sample.turns[0].question).begin;
  const size_t answer = sample.token_span(sample.turns[0].answer).begin;
  TaskPrompt prompt;
  prompt.next = with_question || question == 0 ? answer : question;
  prompt.logits.resize(vocab_size);
  prompt.seq = engine.open();
  engine.prefill(prompt.seq, std::span(sample.tokens.ids).first(prompt.next), prompt.logits);
  return prompt;
}

TaskAnswer answer_turns(Engine& engine, const Tokenizer& tokenizer, const Sample& sample,
                        SequenceId seq, const TaskPrompt& prompt, const AnswerStep& on_step) {
  const std::vector<TokenId>& ids = sample.tokens.ids;
  std::vector<float> logits = prompt.logits;
  size_t next = prompt.next;
  TaskAnswer out;
  for (size_t turn = 0; turn < sample.turns.size(); ++turn) {
    const Span answer = sample.token_span(sample.turns[turn].answer);
    const bool last = turn + 1 == sample.turns.size();
    std::string& given = out.given.emplace_back();
    for (; next < answer.end; ++next) {
      if (next >= answer.begin) {
        if (on_step) on_step(turn, next - answer.begin);
        const auto best =
            static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        given += tokenizer.piece(best, true);
        ++out.n_tokens;
        out.n_right += best == ids[next];
      }
      if (last && next + 1 == answer.end) break;  // nothing is predicted from the last token
      const Engine::DecodeItem item{seq, ids[next]};
      engine.decode({&item, 1}, logits);
    }
  }
  out.correct = out.n_right == out.n_tokens;
  return out;
}

TaskAnswer answer_task(Engine& engine, const Tokenizer& tokenizer, uint32_t vocab_size,
                       const Sample& sample, bool question_in_prompt) {
  const TaskPrompt prompt = prefill_task(engine, vocab_size, sample, question_in_prompt);
  TaskAnswer answer = answer_turns(engine, tokenizer, sample, prompt.seq, prompt);
  engine.close(prompt.seq);
  return answer;
}

// With p = n_right / n and z the 97.5 % point of the normal distribution:
//   (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
Interval wilson_interval(uint64_t n_right, uint64_t n) {
  if (n == 0) return {};
  constexpr double kZ = 1.959963984540054;
  const auto count = static_cast<double>(n);
  const double p = static_cast<double>(n_right) / count;
  const double middle = p + kZ * kZ / (2 * count);
  const double half = kZ * std::sqrt(p * (1 - p) / count + kZ * kZ / (4 * count * count));
  const double scale = 1 + kZ * kZ / count;
  // At the ends the two terms cancel but for rounding.
  return {n_right == 0 ? 0.0 : (middle - half) / scale,
          n_right == n ? 1.0 : (middle + half) / scale};
}

}  // namespace kvasir
