// See runner.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/runner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/serving/scheduler.h"
#include "core/task/evaluate.h"
#include "tools/kvasir/ab/predictions.h"
#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

struct Given {
  TaskAnswer answer = {};
  RequestStatus status = {};
};

// Turns in one line.
std::string joined(const std::vector<std::string>& turns) { return one_line(join(turns, " | ")); }

class Runner {
 public:
  Runner(const AbParts& parts, const AbOptions& options, RunFolder& folder)
      : parts_(parts),
        options_(options),
        folder_(folder),
        encoder_(parts.session.tokenizer()),
        scheduler_(parts.engine, {.memory_bytes = parts.session.sequence_memory()}),
        one_at_a_time_(parts.worker.wants_one_at_a_time()) {
    for (const AbRecord& record : folder.run().records) {
      done_.insert({record.task, record.length, record.index});
      if (record.failed) left_out_.insert(record.strategy);
    }
  }

  void run() {
    ProgressBar bar("samples");
    const std::vector<std::string> tasks = task_names(options_);
    const uint64_t total = uint64_t{options_.n_samples} * tasks.size() * options_.lengths.size();
    for (uint64_t index = 0; index < options_.n_samples; ++index)
      for (const uint32_t length : options_.lengths)
        for (size_t task = 0; task < tasks.size(); ++task) {
          if (done_.count({tasks[task], length, index})) continue;
          if (options_.stop_when_decided && is_decided(folder_.run(), tasks[task], length, index))
            continue;
          parts_.worker.stop_if_interrupted();
          answer(sample(task, length, index), length);
          done_.insert({tasks[task], length, index});
          bar.update(done_.size(), total, running_scores(folder_.run()));
        }
  }

 private:
  // `task`: of options.tasks, or of its sets.
  Sample sample(size_t task, uint32_t length, uint64_t index) {
    if (!options_.sets.empty())
      return tokenised(options_.sets[task].samples[index], index, encoder_);
    auto& made = generators_[{options_.tasks[task], length}];
    if (!made)
      made = std::make_unique<TaskGenerator>(options_.tasks[task], options_.task, length, encoder_);
    return made->make(options_.seed, index);
  }
  void answer(const Sample& sample, uint32_t length);
  void ask(const Sample& sample, const std::vector<size_t>& strategies,
           std::map<size_t, Given>& given, Predictions& predictions);
  AbRecord record_of(const Sample& sample, uint32_t length, size_t strategy) const;
  void fill(AbRecord& record, size_t strategy, const Given& given) const;

  const AbParts parts_;
  const AbOptions& options_;
  RunFolder& folder_;
  PieceEncoder encoder_;
  Scheduler scheduler_;
  bool one_at_a_time_;
  std::map<std::pair<Task, uint32_t>, std::unique_ptr<TaskGenerator>> generators_;
  std::set<std::tuple<std::string, uint32_t, uint64_t>> done_;
  std::set<std::string> left_out_;  // failed, with a record that says so
};

// Strategies are places of the lineup.
void Runner::answer(const Sample& sample, uint32_t length) {
  std::vector<size_t> strategies;
  for (size_t s = 0; s < parts_.lineup.size(); ++s)
    if (parts_.lineup[s].failed.empty() && !left_out_.count(parts_.lineup[s].label))
      strategies.push_back(s);
  parts_.engine.reset_engagement();
  Predictions predictions(parts_.lineup.size());
  std::map<size_t, Given> given;
  if (!one_at_a_time_) ask(sample, strategies, given, predictions);
  for (size_t i = 0; one_at_a_time_ && i < strategies.size(); ++i) {
    parts_.worker.works_on(parts_.lineup[strategies[i]].label);
    ask(sample, {strategies[i]}, given, predictions);
  }
  parts_.worker.works_on("");
  one_at_a_time_ = false;
  if (given[0].status.error) std::rethrow_exception(given[0].status.error);

  std::vector<AbRecord> records;
  for (size_t s = 0; s < parts_.lineup.size(); ++s) {
    const Entrant& entrant = parts_.lineup[s];
    if (left_out_.count(entrant.label)) continue;
    AbRecord record = record_of(sample, length, s);
    if (const auto it = given.find(s); it != given.end()) {
      fill(record, s, it->second);
      predictions.write(s, record);
    } else {
      record.failed = true;
      record.given = one_line(entrant.failed);
    }
    if (record.failed) left_out_.insert(entrant.label);
    if (record.failed && entrant.failed.empty())
      report_progress(entrant.label + " failed and is left out from here on: " + record.given);
    records.push_back(std::move(record));
  }
  folder_.add(records);
}

// Requests of one prompt: the scheduler reads it once for those that can share it.
void Runner::ask(const Sample& sample, const std::vector<size_t>& strategies,
                 std::map<size_t, Given>& given, Predictions& predictions) {
  std::vector<Request> requests;
  for (const size_t s : strategies) {
    requests.push_back(task_request(parts_.session.tokenizer(), sample, parts_.ids[s],
                                    options_.question_in_prompt,
                                    [&given, s](const TaskAnswer& answer, const RequestStatus& st) {
                                      given[s] = {answer, st};
                                    }));
    requests.back().next = [&predictions, s, judge = std::move(requests.back().next),
                            step = size_t{0}](std::span<const float> logits) mutable {
      predictions.add(s, step++, logits);
      return judge(logits);
    };
  }
  scheduler_.submit_together(std::move(requests));
  while (scheduler_.step()) {
    parts_.worker.beat();
    parts_.worker.stop_if_interrupted();
  }
  if (scheduler_.n_queued() > 0)
    throw Error(ErrorKind::kResource,
                "the strategies' sequences do not fit into memory side by side: give fewer "
                "strategies or a smaller --length, or see `kvasir plan`");
  if (scheduler_.n_running() > 0)
    throw Error(ErrorKind::kInternal, "the scheduler has nothing to do, but a request is left");
}

AbRecord Runner::record_of(const Sample& sample, uint32_t length, size_t strategy) const {
  AbRecord r;
  r.task = sample.label;
  r.length = length;
  r.index = sample.index;
  r.strategy = parts_.lineup[strategy].label;
  for (auto p = sample.planted.rbegin(); p != sample.planted.rend(); ++p)
    if (p->turn == 0) r.depth = p->depth;
  std::vector<std::string> expected;
  for (const Turn& turn : sample.turns) expected.push_back(sample.bytes(turn.answer));
  r.expected = joined(expected);
  return r;
}

void Runner::fill(AbRecord& r, size_t strategy, const Given& given) const {
  const Engagement& d = parts_.engine.decode_engagement(parts_.ids[strategy]);
  r.failed = given.status.error != nullptr;
  r.right = given.answer.correct && !r.failed;
  r.answer_tokens = given.answer.n_tokens;
  r.answer_tokens_right = given.answer.n_right;
  r.prompt_tokens = given.status.prompt_tokens;
  r.decoded = given.status.decoded_tokens;
  r.considered = d.tokens_considered;
  r.selected = d.tokens_selected;
  r.attended = d.tokens_attended;
  r.kv_bytes = d.kv_bytes_read;
  r.choose_bytes = d.bytes_read_to_choose();
  r.fallbacks = d.fallbacks;
  r.given = r.failed ? one_line(given.status.error_text()) : joined(given.answer.given);
}

}  // namespace

std::vector<std::string> task_names(const AbOptions& options) {
  std::vector<std::string> out;
  for (const Task task : options.tasks) out.emplace_back(name(task));
  for (const SampleSet& set : options.sets) out.push_back(set.task);
  return out;
}

void check_tasks(Session& session, AbOptions& options) {
  PieceEncoder encoder(session.tokenizer());
  size_t longest = 0;
  for (const SampleSet& set : options.sets)
    for (size_t i = 0; i < options.n_samples; ++i)
      longest = std::max(longest, tokenised(set.samples[i], i, encoder).tokens.ids.size());
  if (longest) options.lengths = {static_cast<uint32_t>(longest)};
  for (const uint32_t length : options.lengths)
    for (const Task task : options.tasks) TaskGenerator(task, options.task, length, encoder);
}

void run_samples(const AbParts& parts, const AbOptions& options, RunFolder& folder) {
  Runner(parts, options, folder).run();
}

}  // namespace kvasir::tool
