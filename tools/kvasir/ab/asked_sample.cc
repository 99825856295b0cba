// See asked_sample.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/asked_sample.h"

#include <algorithm>
#include <utility>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

// Turns in one line.
std::string joined(const std::vector<std::string>& turns) { return one_line(join(turns, " | ")); }

// By prediction: the question whose answer comes next.
std::vector<uint32_t> questions_by_step(const Sample& sample, const AbOptions& options) {
  const size_t begin = prompt_tokens(sample, options.question_in_prompt);
  std::vector<uint32_t> out(sample.tokens.ids.size() - begin, 0);
  if (options.n_questions == 1) return out;
  uint32_t question = 0;
  for (size_t step = 0; step < out.size(); ++step) {
    const Span answer = sample.token_span(sample.turns[question].answer);
    if (begin + step >= answer.end && question + 1 < options.n_questions) ++question;
    out[step] = question;
  }
  return out;
}

// What was read between two counts; a storage counts all its tiers from its first step on.
std::string tier_bytes(const std::vector<TierTraffic>& before,
                       const std::vector<TierTraffic>& after) {
  std::vector<std::string> out;
  for (size_t i = 0; i < after.size(); ++i)
    out.push_back(
        after[i].tier + " " +
        std::to_string(after[i].bytes_read - (i < before.size() ? before[i].bytes_read : 0)));
  return join(out, ", ");
}

}  // namespace

AskedSample::AskedSample(const AbParts& parts, const AbOptions& options, Sample sample,
                         uint32_t length, const std::vector<StrategyId>& ids)
    : parts_(parts),
      options_(options),
      sample_(std::move(sample)),
      length_(length),
      ids_(ids),
      question_of_step_(questions_by_step(sample_, options)),
      predictions_(parts.lineup.size(), options.n_questions, question_of_step_) {}

void AskedSample::submit(Scheduler& scheduler, const std::vector<size_t>& strategies,
                         const std::function<void(RequestId)>& on_read) {
  std::vector<Request> requests;
  for (const size_t s : strategies) {
    requests.push_back(request(s));
    if (on_read)
      requests.back().on_prompt_end = [this, s, on_read](std::span<const float>) {
        on_read(given_[s].id);
      };
  }
  n_waiting_ += strategies.size();
  const std::vector<RequestId> ids = scheduler.submit_together(std::move(requests));
  for (size_t i = 0; i < strategies.size(); ++i) given_[strategies[i]].id = ids[i];
}

Request AskedSample::request(size_t strategy) {
  given_[strategy].prefill_before = parts_.engine.prefill_engagement(ids_[strategy]).total_nanos;
  Request out =
      task_request(parts_.session.tokenizer(), sample_, ids_[strategy], options_.question_in_prompt,
                   [this, strategy](const TaskAnswer& answer, const RequestStatus& st) {
                     end(strategy, answer, st);
                   });
  out.next = [this, strategy, judge = std::move(out.next),
              step = size_t{0}](std::span<const float> logits) mutable {
    count_until(strategy, question_of_step_[step]);
    predictions_.add(strategy, step++, logits);
    return judge(logits);
  };
  return out;
}

std::optional<RequestId> AskedSample::request_of(size_t strategy) const {
  const auto given = given_.find(strategy);
  return given == given_.end() ? std::nullopt : std::optional(given->second.id);
}

std::exception_ptr AskedSample::error_of(size_t strategy) const {
  const auto given = given_.find(strategy);
  return given == given_.end() ? nullptr : given->second.status.error;
}

uint64_t AskedSample::prompt_tokens() const {
  uint64_t n = 0;
  for (const auto& [strategy, given] : given_) n += given.status.prompt_tokens;
  return n;
}

uint64_t AskedSample::restored_tokens() const {
  uint64_t n = 0;
  for (const auto& [strategy, given] : given_) n += given.status.restored_tokens;
  return n;
}

AskedSample::Counts AskedSample::counts_of(size_t strategy) const {
  const Engagement& e = parts_.engine.decode_engagement(ids_[strategy]);
  return {e.steps,           e.tokens_considered, e.tokens_selected,
          e.tokens_attended, e.kv_bytes_read,     e.bytes_read_to_choose(),
          e.fallbacks,       e.total_nanos,       e.tiers};
}

void AskedSample::count_until(size_t strategy, size_t question) {
  std::vector<Counts>& until = given_[strategy].until;
  if (until.size() <= question) until.resize(question + 1, counts_of(strategy));
}

void AskedSample::end(size_t strategy, const TaskAnswer& answer, const RequestStatus& status) {
  Given& given = given_[strategy];
  given.answer = answer;
  given.status = status;
  count_until(strategy, options_.n_questions);
  given.prefill_nanos =
      parts_.engine.prefill_engagement(ids_[strategy]).total_nanos - given.prefill_before;
  --n_waiting_;
}

// A strategy for which another one read the prompt takes that one's time and its own plugins'.
uint64_t AskedSample::prefill_nanos(const Given& given) const {
  const RequestId reader = given.status.prompt_read_by;
  for (const auto& [strategy, other] : given_)
    if (other.id == reader && &other != &given) return given.prefill_nanos + other.prefill_nanos;
  return given.prefill_nanos;
}

std::vector<AbRecord> AskedSample::records(size_t strategy, const std::string& why_not_asked,
                                           bool is_timed) const {
  std::vector<AbRecord> out;
  const auto given = given_.find(strategy);
  for (uint32_t question = 0; question < options_.n_questions; ++question) {
    AbRecord& record = out.emplace_back(record_of(strategy, question));
    if (given == given_.end()) {
      record.failed = true;
      record.given = one_line(why_not_asked);
      continue;
    }
    fill(record, question, given->second, is_timed);
    predictions_.write(strategy, question, record);
  }
  return out;
}

AbRecord AskedSample::record_of(size_t strategy, uint32_t question) const {
  AbRecord r;
  r.task = sample_.label;
  r.length = length_;
  r.index = sample_.index;
  r.question = question + 1;
  r.strategy = parts_.lineup[strategy].label;
  for (auto p = sample_.planted.rbegin(); p != sample_.planted.rend(); ++p)
    if (p->turn == static_cast<int>(question)) r.depth = p->depth;
  std::vector<std::string> expected;
  for (size_t turn = 0; turn < sample_.turns.size(); ++turn)
    if (options_.n_questions == 1 || turn == question)
      expected.push_back(sample_.bytes(sample_.turns[turn].answer));
  r.expected = joined(expected);
  return r;
}

void AskedSample::fill(AbRecord& r, uint32_t question, const Given& given, bool is_timed) const {
  const TaskAnswer& answer = given.answer;
  const bool by_itself = options_.n_questions > 1;
  r.failed = given.status.error != nullptr;
  r.right = !r.failed && (by_itself ? answer.turns[question].correct() : answer.correct);
  r.answer_tokens = by_itself ? answer.turns[question].n_tokens : answer.n_tokens;
  r.answer_tokens_right = by_itself ? answer.turns[question].n_right : answer.n_right;
  r.prompt_tokens = given.status.prompt_tokens;
  const Counts &before = given.until[question], &after = given.until[question + 1];
  r.decoded = after.steps - before.steps;
  r.considered = after.considered - before.considered;
  r.selected = after.selected - before.selected;
  r.attended = after.attended - before.attended;
  r.kv_bytes = after.kv_bytes - before.kv_bytes;
  r.choose_bytes = after.choose_bytes - before.choose_bytes;
  r.fallbacks = after.fallbacks - before.fallbacks;
  r.tier_bytes = tier_bytes(before.tiers, after.tiers);
  r.given = r.failed    ? one_line(given.status.error_text())
            : by_itself ? one_line(answer.given[question])
                        : joined(answer.given);
  if (!is_timed || r.failed) return;
  r.decode_nanos = after.nanos - before.nanos;
  if (question == 0) r.prefill_nanos = prefill_nanos(given);
}

}  // namespace kvasir::tool
