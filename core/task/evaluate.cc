// Answering; see evaluate.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/evaluate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"

namespace kvasir {

AnswerJudge::AnswerJudge(const Tokenizer& tokenizer, const Sample& sample, size_t next)
    : tokenizer_(tokenizer), sample_(sample), next_(next) {
  answer_.given.resize(sample.turns.size());
  answer_.turns.resize(sample.turns.size());
}

std::optional<TokenId> AnswerJudge::next(std::span<const float> logits) {
  const std::vector<TokenId>& ids = sample_.tokens.ids;
  if (turn_ == sample_.turns.size()) return std::nullopt;
  const Span span = sample_.token_span(sample_.turns[turn_].answer);
  if (next_ >= span.begin) {
    const auto best =
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    answer_.given[turn_] += tokenizer_.piece(best, true);
    TaskAnswer::Turn& turn = answer_.turns[turn_];
    ++answer_.n_tokens, ++turn.n_tokens;
    if (best == ids[next_]) ++answer_.n_right, ++turn.n_right;
    answer_.correct = answer_.n_right == answer_.n_tokens;
  }
  const TokenId token = ids[next_++];
  if (next_ == span.end) ++turn_;
  // Nothing is predicted from the last token.
  return turn_ == sample_.turns.size() ? std::nullopt : std::optional(token);
}

size_t prompt_tokens(const Sample& sample, bool with_question) {
  if (sample.turns.empty())
    throw input_error(std::string(name(sample.task)) + " asks nothing: choose another task");
  const size_t question = sample.token_span(sample.turns[0].question).begin;
  const size_t answer = sample.token_span(sample.turns[0].answer).begin;
  return with_question || question == 0 ? answer : question;
}

Request task_request(const Tokenizer& tokenizer, const Sample& sample, StrategyId strategy,
                     bool with_question,
                     std::function<void(const TaskAnswer&, const RequestStatus&)> answered) {
  const size_t n = prompt_tokens(sample, with_question);
  const std::vector<TokenId>& ids = sample.tokens.ids;
  const auto judge = std::make_shared<AnswerJudge>(tokenizer, sample, n);
  Request request;
  request.strategy = strategy;
  request.prompt.assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n));
  request.max_new_tokens = static_cast<uint32_t>(ids.size() - n);
  request.next = [judge](std::span<const float> logits) { return judge->next(logits); };
  request.on_end = [judge, answered = std::move(answered)](const RequestStatus& status) {
    answered(judge->answer(), status);
  };
  return request;
}

}  // namespace kvasir
