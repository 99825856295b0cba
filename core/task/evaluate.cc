// Answering; see evaluate.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/evaluate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/task/statistics.h"

namespace kvasir {

namespace {

TokenId most_likely(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void finish(TaskAnswer& answer) {
  answer.score = mean(answer.scores);
  answer.correct = std::all_of(answer.scores.begin(), answer.scores.end(),
                               [](double score) { return score == 1; });
}

}  // namespace

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
    const TokenId best = most_likely(logits);
    answer_.given[turn_] += tokenizer_.piece(best, true);
    TaskAnswer::Turn& turn = answer_.turns[turn_];
    ++answer_.n_tokens, ++turn.n_tokens;
    if (best == ids[next_]) ++answer_.n_right, ++turn.n_right;
  }
  const TokenId token = ids[next_++];
  if (next_ == span.end) {
    answer_.scores.push_back(answer_.turns[turn_].correct());
    ++turn_;
  }
  if (turn_ < sample_.turns.size()) return token;
  finish(answer_);
  return std::nullopt;  // nothing is predicted from the last token
}

AnswerWriter::AnswerWriter(const Tokenizer& tokenizer, const Sample& sample, size_t next)
    : tokenizer_(tokenizer),
      sample_(sample),
      next_(next),
      forced_end_(sample.token_span(sample.turns[0].answer).begin) {
  answer_.given.resize(sample.turns.size());
}

std::optional<TokenId> AnswerWriter::take_forced() {
  if (last_) return std::exchange(last_, std::nullopt);
  if (next_ < forced_end_) return sample_.tokens.ids[next_++];
  return std::nullopt;
}

std::optional<TokenId> AnswerWriter::next(std::span<const float> logits) {
  if (turn_ == sample_.turns.size()) return std::nullopt;
  if (const auto forced = take_forced()) return forced;
  const TokenId best = most_likely(logits);
  if (tokenizer_.is_end_of_generation(best)) return end_turn();
  std::string& given = answer_.given[turn_];
  given += tokenizer_.piece(best);
  ++answer_.n_tokens;
  for (const std::string& stop : sample_.grading.stops) {
    const size_t at = given.find(stop);
    if (at == given.npos) continue;
    given.resize(at);
    return end_turn();
  }
  if (++turn_tokens_ < sample_.grading.max_new_tokens) return best;
  last_ = best;
  return end_turn();
}

std::optional<TokenId> AnswerWriter::end_turn() {
  const Turn& turn = sample_.turns[turn_];
  answer_.scores.push_back(score(sample_.grading.scorer, answer_.given[turn_], turn.references));
  turn_tokens_ = 0;
  if (++turn_ == sample_.turns.size()) {
    finish(answer_);
    return std::nullopt;
  }
  next_ = sample_.token_span(sample_.turns[turn_].question).begin;
  forced_end_ = sample_.token_span(sample_.turns[turn_].answer).begin;
  return take_forced();
}

uint32_t context_tokens(const Sample& sample, Judging judging) {
  const auto n = static_cast<uint32_t>(sample.tokens.ids.size());
  if (judging == Judging::kTokens) return n;
  return n + static_cast<uint32_t>(sample.turns.size()) * sample.grading.max_new_tokens;
}

size_t prompt_tokens(const Sample& sample, bool with_question) {
  if (sample.turns.empty()) throw input_error(sample.label + " asks nothing: choose another task");
  const size_t question = sample.token_span(sample.turns[0].question).begin;
  const size_t answer = sample.token_span(sample.turns[0].answer).begin;
  return with_question || question == 0 ? answer : question;
}

Request task_request(const Tokenizer& tokenizer, const Sample& sample, StrategyId strategy,
                     bool with_question,
                     std::function<void(const TaskAnswer&, const RequestStatus&)> answered,
                     Judging judging) {
  const size_t n = prompt_tokens(sample, with_question);
  const std::vector<TokenId>& ids = sample.tokens.ids;
  Request request;
  request.strategy = strategy;
  request.prompt.assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n));
  request.max_new_tokens = context_tokens(sample, judging) - static_cast<uint32_t>(n);
  const auto ask = [&](const auto& judge) {
    request.next = [judge](std::span<const float> logits) { return judge->next(logits); };
    request.on_end = [judge, answered = std::move(answered)](const RequestStatus& status) {
      answered(judge->answer(), status);
    };
  };
  if (judging == Judging::kTokens)
    ask(std::make_shared<AnswerJudge>(tokenizer, sample, n));
  else
    ask(std::make_shared<AnswerWriter>(tokenizer, sample, n));
  return request;
}

}  // namespace kvasir
