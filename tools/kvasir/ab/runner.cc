// See runner.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/runner.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/serving/scheduler.h"
#include "tools/kvasir/ab/asked_sample.h"
#include "tools/kvasir/ab/sample_maker.h"
#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/progress_bar.h"

namespace kvasir::tool {
namespace {

// A sample of the run that is being answered, or waits for one before it.
struct Drawn {
  std::unique_ptr<AskedSample> asked;
  size_t slot = 0;  // of AbParts::ids
};

class Runner {
 public:
  Runner(const AbParts& parts, const AbOptions& options, RunFolder& folder)
      : parts_(parts),
        options_(options),
        folder_(folder),
        samples_(options, parts.session.tokenizer()),
        scheduler_(parts.engine,
                   {.memory_bytes = parts.session.sequence_memory(), .restores = true}),
        n_alone_(parts.worker.wants_one_at_a_time() ? options.n_parallel : 0),
        tasks_(task_names(options)),
        total_(uint64_t{options.n_samples} * tasks_.size() * options.lengths.size()) {
    for (const AbRecord& record : folder.run().records) {
      done_.insert({record.task, record.length, record.index});
      if (record.failed) left_out_.insert(record.strategy);
    }
    for (size_t slot = parts.ids.size(); slot-- > 0;) free_.push_back(slot);
    bar_.emplace("samples", done_.size());
  }

  void run() {
    for (;;) {
      parts_.worker.stop_if_interrupted();
      while (!free_.empty() && (drawn_.empty() || n_alone_ == 0) && draw()) {
      }
      if (drawn_.empty()) return say_restored();
      while (!drawn_.front().asked->is_answered()) step();
      while (!drawn_.empty() && drawn_.front().asked->is_answered()) {
        free_.push_back(drawn_.front().slot);
        write(*drawn_.front().asked);
        drawn_.pop_front();
      }
    }
  }

 private:
  bool is_timed() const { return options_.n_parallel == 1; }
  bool is_over(const std::string& task, uint32_t length, uint64_t index) const {
    return options_.stop_when_decided && is_decided(folder_.run(), task, length, index);
  }

  bool draw();
  void ask(const Drawn& drawn);
  void ask_one_after_another(AskedSample& asked, const std::vector<size_t>& strategies);
  void ask_alone(AskedSample& asked, const std::vector<size_t>& strategies);
  void step();
  void write(const AskedSample& asked);
  void say_restored() const;

  const AbParts parts_;
  const AbOptions& options_;
  RunFolder& folder_;
  SampleMaker samples_;
  Scheduler scheduler_;
  uint32_t n_alone_;  // samples in which the strategies are asked one at a time
  std::vector<std::string> tasks_;
  uint64_t total_, next_ = 0;
  uint64_t restored_tokens_ = 0, prompt_tokens_ = 0;  // of all strategies
  std::set<std::tuple<std::string, uint32_t, uint64_t>> done_;
  std::set<std::string> left_out_;  // failed, with a record that says so
  std::deque<Drawn> drawn_;         // in the order in which they are written
  std::vector<size_t> free_;        // slots
  std::optional<ProgressBar> bar_;
};

// The next sample that is to be answered; false: there is none.
bool Runner::draw() {
  const size_t n_lengths = options_.lengths.size();
  for (; next_ < total_; ++next_) {
    const size_t task = next_ % tasks_.size();
    const uint32_t length = options_.lengths[next_ / tasks_.size() % n_lengths];
    const uint64_t index = next_ / tasks_.size() / n_lengths;
    if (done_.count({tasks_[task], length, index}) || is_over(tasks_[task], length, index))
      continue;
    const size_t slot = free_.back();
    free_.pop_back();
    drawn_.push_back(
        {std::make_unique<AskedSample>(parts_, options_, samples_.make(task, length, index), length,
                                       parts_.ids[slot]),
         slot});
    ++next_;
    ask(drawn_.back());
    return true;
  }
  return false;
}

// Strategies are places of the lineup.
void Runner::ask(const Drawn& drawn) {
  std::vector<size_t> strategies;
  for (size_t s = 0; s < parts_.lineup.size(); ++s)
    if (parts_.lineup[s].failed.empty() && !left_out_.count(parts_.lineup[s].label))
      strategies.push_back(s);
  if (n_alone_ > 0) {
    --n_alone_;
    ask_alone(*drawn.asked, strategies);
  } else if (is_timed()) {
    ask_one_after_another(*drawn.asked, strategies);
  } else {
    drawn.asked->submit(scheduler_, strategies);
  }
}

// So that it is known which strategy ends the process.
void Runner::ask_alone(AskedSample& asked, const std::vector<size_t>& strategies) {
  for (const size_t s : strategies) {
    parts_.worker.works_on(parts_.lineup[s].label);
    asked.submit(scheduler_, {s});
    while (!asked.is_answered()) step();
  }
  parts_.worker.works_on("");
}

// All read the prompt; then dense attention and the arms decode by themselves, each sample with
// another one first, and the rungs of ladders together, since nobody asks for their times.
void Runner::ask_one_after_another(AskedSample& asked, const std::vector<size_t>& strategies) {
  asked.submit(scheduler_, strategies, [this](RequestId id) { scheduler_.pause(id); });
  std::vector<size_t> timed, rungs;
  for (const size_t s : strategies) {
    const Role role = parts_.lineup[s].role;
    (role == Role::kDense || role == Role::kArm ? timed : rungs).push_back(s);
  }
  const auto first = static_cast<ptrdiff_t>(asked.sample().index % timed.size());
  std::rotate(timed.begin(), timed.begin() + first, timed.end());
  const auto run = [&] {
    while (scheduler_.step()) {
      parts_.worker.beat();
      parts_.worker.stop_if_interrupted();
    }
  };
  run();
  for (const size_t s : timed) {
    scheduler_.resume(*asked.request_of(s));
    run();
  }
  for (const size_t s : rungs) scheduler_.resume(*asked.request_of(s));
}

void Runner::step() {
  const bool any = scheduler_.step();
  parts_.worker.beat();
  parts_.worker.stop_if_interrupted();
  if (any) return;
  if (scheduler_.n_queued() > 0)
    throw Error(ErrorKind::kResource,
                "the strategies' sequences do not fit into memory side by side: give fewer "
                "strategies or a smaller --length, or see `kvasir plan`");
  throw Error(ErrorKind::kInternal, "the scheduler has nothing to do, but a request is left");
}

void Runner::say_restored() const {
  if (restored_tokens_ != 0)
    report_progress(std::to_string(restored_tokens_) + " of " + std::to_string(prompt_tokens_) +
                    " prompt tokens of all strategies were in the store");
}

void Runner::write(const AskedSample& asked) {
  if (asked.error_of(0)) std::rethrow_exception(asked.error_of(0));
  const Sample& sample = asked.sample();
  restored_tokens_ += asked.restored_tokens();
  prompt_tokens_ += asked.prompt_tokens();
  // Those before it were not written yet when it was drawn.
  if (is_over(sample.label, asked.length(), sample.index)) return;
  std::vector<AbRecord> records;
  for (size_t s = 0; s < parts_.lineup.size(); ++s) {
    const Entrant& entrant = parts_.lineup[s];
    if (left_out_.count(entrant.label)) continue;
    std::vector<AbRecord> of_strategy = asked.records(s, entrant.failed, is_timed());
    if (of_strategy[0].failed) left_out_.insert(entrant.label);
    if (of_strategy[0].failed && entrant.failed.empty())
      report_progress(entrant.label +
                      " failed and is left out from here on: " + of_strategy[0].given);
    std::move(of_strategy.begin(), of_strategy.end(), std::back_inserter(records));
  }
  folder_.add(records);
  done_.insert({sample.label, asked.length(), sample.index});
  bar_->update(done_.size(), total_, running_scores(folder_.run()));
}

}  // namespace

void run_samples(const AbParts& parts, const AbOptions& options, RunFolder& folder) {
  Runner(parts, options, folder).run();
}

}  // namespace kvasir::tool
