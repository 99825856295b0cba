// See evaluation.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "core/serving/scheduler.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/session/masked.h"

namespace kvasir::tool {
namespace {

// The answer to one sample under one strategy, and its request.
struct Given {
  RequestId id = 0;
  TaskAnswer answer = {};
  RequestStatus status = {};
};

SampleResult result_of(const Sample& sample, const EvaluationCell& cell, const TaskAnswer& answer) {
  SampleResult out;
  out.task = cell.task;
  out.length = cell.length;
  out.strategy = cell.strategy;
  out.seed = sample.seed;
  out.index = sample.index;
  out.prompt_tokens = sample.token_span(sample.turns[0].answer).begin;
  out.answer = answer;
  for (const Turn& turn : sample.turns) out.expected.push_back(sample.bytes(turn.answer));
  for (const Planted& p : sample.planted)
    if (p.turn >= 0) out.depths.push_back(p.depth);
  return out;
}

// The strategy that read the prompts for this one. Requests get ids in the order of strategies.
StrategyId reader_of(const std::vector<Given>& given, StrategyId strategy) {
  const auto is_reader = [&](const Given& g) {
    return g.id == given[strategy].status.prompt_read_by;
  };
  return static_cast<StrategyId>(std::find_if(given.begin(), given.end(), is_reader) -
                                 given.begin());
}

// Samples that are answered together.
struct Group {
  uint32_t length = 0;
  Judging judging = Judging::kTokens;
  std::vector<Sample> samples;
  const SampleSet* set = nullptr;

  uint32_t context() const {
    uint32_t longest = 0;
    for (const Sample& sample : samples)
      longest = std::max(longest, context_tokens(sample, judging));
    return std::max(length, longest);
  }
};

class Evaluator {
 public:
  Evaluator(Session& session, const std::vector<Arm>& arms, const EvaluationOptions& options,
            const OnSample& on_sample, const OnSetSample& on_set_sample)
      : session_(session),
        arms_(arms),
        options_(options),
        on_sample_(on_sample),
        on_set_sample_(on_set_sample),
        encoder_(session.tokenizer()),
        n_strategies_(static_cast<uint32_t>(arms.size() + 1)) {}

  std::vector<EvaluationCell> run() {
    std::vector<Group> of_sets;
    for (const SampleSet& set : options_.sets) of_sets.push_back(group_of(set));
    session_.load(longest(of_sets), n_sequences());
    total_ = uint64_t{options_.n_samples} * options_.tasks.size() * options_.lengths.size();
    for (const Group& group : of_sets) total_ += group.samples.size();
    total_ *= n_strategies_;
    bar_.emplace("samples");
    for (const Group& group : of_sets) answer(group);
    for (const uint32_t length : options_.lengths)
      for (const Task task : options_.tasks) answer(group_of(task, length));
    bar_.reset();
    return std::move(cells_);
  }

 private:
  // Finds mistakes before anything runs.
  uint32_t longest(const std::vector<Group>& of_sets) {
    uint32_t out = 0;
    for (const Group& group : of_sets) {
      const uint32_t n = group.context();
      if (session_.context_or(n) < n)
        throw input_error(group.set->task + " needs " + std::to_string(n) + " tokens, but " +
                          session_.context_source() + " gives " +
                          std::to_string(session_.context_or(n)));
      out = std::max(out, n);
    }
    for (const uint32_t length : options_.lengths)
      for (const Task task : options_.tasks) {
        TaskGenerator generator(task, options_.task, length, encoder_);
        const Sample sample = generator.make(options_.seed, 0);
        const auto judging = options_.judging.value_or(info(task).judging);
        const auto n_tokens = static_cast<uint32_t>(sample.tokens.ids.size());
        // Other samples may ask more questions.
        out = std::max(out, length + 2 * (context_tokens(sample, judging) - n_tokens));
      }
    return out;
  }

  Group group_of(Task task, uint32_t length) {
    Group out{length, options_.judging.value_or(info(task).judging), {}};
    TaskGenerator generator(task, options_.task, length, encoder_);
    for (uint32_t i = 0; i < options_.n_samples; ++i) {
      out.samples.push_back(generator.make(options_.seed, i));
      stop_if_interrupted();
    }
    return out;
  }

  Group group_of(const SampleSet& set) {
    Group out{0, options_.judging.value_or(Judging::kText), {}, &set};
    for (const SampleText& text : set.samples) {
      out.samples.push_back(tokenised(text, out.samples.size(), encoder_));
      out.length =
          std::max(out.length, static_cast<uint32_t>(out.samples.back().tokens.ids.size()));
      stop_if_interrupted();
    }
    return out;
  }

  void answer(const Group& group);
  std::vector<EvaluationCell> open_cells(Engine& engine, const Group& group);
  std::vector<std::vector<Given>> answer_all(
      Engine& engine, const Group& group,
      const std::function<void(size_t, const std::vector<Given>&)>& on_answered);
  void add(EvaluationCell& cell, const Group& group, size_t i, const Given& given);
  // Each arm may have a mask.
  uint32_t n_sequences() const { return options_.n_parallel * (2 * n_strategies_ - 1); }

  Session& session_;
  const std::vector<Arm>& arms_;
  const EvaluationOptions& options_;
  const OnSample& on_sample_;
  const OnSetSample& on_set_sample_;
  PieceEncoder encoder_;
  uint32_t n_strategies_;  // dense attention and arms
  Masks masks_;
  std::optional<ProgressBar> bar_;
  std::vector<EvaluationCell> cells_;
  uint64_t done_ = 0, total_ = 0;
};

std::vector<EvaluationCell> Evaluator::open_cells(Engine& engine, const Group& group) {
  std::vector<EvaluationCell> cells(n_strategies_);
  cells[0].strategy = "dense";
  std::vector<const StrategyConfig*> strategies;
  for (size_t i = 0; i < arms_.size(); ++i) {
    engine.add_strategy(session_.pipeline(arms_[i].strategy));
    cells[i + 1].strategy = arms_[i].label;
    strategies.push_back(&arms_[i].strategy);
  }
  masks_ = add_masks(engine, session_, strategies);
  for (EvaluationCell& cell : cells) {
    cell.task = group.samples[0].label;
    cell.length = group.length;
    cell.judging = group.judging;
    cell.scorer = group.samples[0].grading.scorer;
    cell.by_depth.resize(options_.task.depths.size());
  }
  return cells;
}

void Evaluator::answer(const Group& group) {
  const auto engine = session_.make_engine(group.context(), n_sequences());
  std::vector<EvaluationCell> cells = open_cells(*engine, group);
  const auto begin = std::chrono::steady_clock::now();
  const auto given = answer_all(*engine, group, [&](size_t i, const std::vector<Given>& answers) {
    for (StrategyId s = 0; s < n_strategies_; ++s) {
      add(cells[s], group, i, answers[s]);
      if (const StrategyId mask = masks_.of[s])
        cells[s].masked_correct.push_back(answers[mask].answer.correct);
    }
  });
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (StrategyId s = 0; s < n_strategies_; ++s) {
    EvaluationCell& cell = cells[s];
    const StrategyId reader = reader_of(given[0], s);
    cell.read_with = reader == s ? "" : cells[reader].strategy;
    RunFigures figures;
    for (const std::vector<Given>& answers : given) {
      figures.prompt_tokens += answers[s].status.prompt_done;
      figures.restored_prompt_tokens += answers[s].status.restored_tokens;
      figures.generated_tokens += answers[s].status.decoded_tokens;
    }
    // Of a follower: with the time of who read the prompts for it.
    uint64_t prefill_nanos = engine->prefill_engagement(s).total_nanos;
    if (reader != s) prefill_nanos += engine->prefill_engagement(reader).total_nanos;
    figures.prefill_ms = static_cast<double>(prefill_nanos) / 1e6;
    figures.decode_ms = static_cast<double>(engine->decode_engagement(s).total_nanos) / 1e6;
    cell.run = run_report(*engine, figures, s);
    cell.seconds =
        static_cast<double>(cell.run.prefill.total_nanos + cell.run.decode.total_nanos) / 1e9;
    cell.wall_seconds = wall;
  }
  report_progress(to_line(cells));
  std::move(cells.begin(), cells.end(), std::back_inserter(cells_));
}

// [samples][strategies and masks]; n_parallel samples at a time. on_answered(sample, answers of all
// strategies) is called in the order of samples.
std::vector<std::vector<Given>> Evaluator::answer_all(
    Engine& engine, const Group& group,
    const std::function<void(size_t, const std::vector<Given>&)>& on_answered) {
  const std::vector<Sample>& samples = group.samples;
  Scheduler scheduler(engine, {.memory_bytes = session_.sequence_memory(), .restores = true});
  std::vector<std::vector<Given>> all(samples.size(), std::vector<Given>(masks_.n_strategies));
  std::vector<uint32_t> n_left(samples.size(), masks_.n_strategies);
  size_t n_submitted = 0, n_in_flight = 0, n_answered = 0;
  std::exception_ptr error;
  const auto submit = [&](size_t i) {
    std::vector<Request> requests;
    for (StrategyId s = 0; s < masks_.n_strategies; ++s)
      requests.push_back(task_request(
          session_.tokenizer(), samples[i], s, options_.question_in_prompt,
          [&, i, s](const TaskAnswer& answer, const RequestStatus& status) {
            all[i][s].answer = answer;
            all[i][s].status = status;
            if (status.error && !error) error = status.error;
            if (--n_left[i] == 0) --n_in_flight;
            if (s < n_strategies_) bar_->update(++done_, total_);
          },
          group.judging));
    const auto ids = scheduler.submit_together(std::move(requests));
    for (StrategyId s = 0; s < masks_.n_strategies; ++s) all[i][s].id = ids[s];
  };
  for (bool goes_on = true; goes_on;) {
    while (n_in_flight < options_.n_parallel && n_submitted < samples.size()) {
      ++n_in_flight;
      submit(n_submitted++);
    }
    goes_on = scheduler.step() && !error;
    stop_if_interrupted();
    for (; !error && n_answered < samples.size() && n_left[n_answered] == 0; ++n_answered)
      on_answered(n_answered, all[n_answered]);
  }
  if (error) std::rethrow_exception(error);
  return all;
}

void Evaluator::add(EvaluationCell& cell, const Group& group, size_t i, const Given& given) {
  const Sample& sample = group.samples[i];
  const TaskAnswer& answer = given.answer;
  cell.scores.push_back(answer.score);
  cell.n_tokens += answer.n_tokens;
  cell.n_right += answer.n_right;
  cell.n_decoded += given.status.decoded_tokens;
  cell.by_turn.resize(std::max(cell.by_turn.size(), answer.scores.size()));
  for (size_t turn = 0; turn < answer.scores.size(); ++turn)
    cell.by_turn[turn].add(answer.scores[turn]);
  if (!cell.by_depth.empty()) cell.by_depth[i % cell.by_depth.size()].add(answer.score);
  if (group.judging == Judging::kText && sample.grading.scorer == Scorer::kEighths)
    for (size_t turn = 0; turn < sample.turns.size(); ++turn) {
      const auto right = right_eighths(answer.given[turn], sample.turns[turn].references[0]);
      for (size_t eighth = 0; eighth < right.size(); ++eighth)
        cell.by_eighth[eighth].add(right[eighth]);
    }
  const SampleResult result = result_of(sample, cell, answer);
  if (on_sample_) on_sample_(result);
  if (on_set_sample_ && group.set) on_set_sample_(group.set->samples[i], result);
}

// Samples with a higher score of one of them: where scores are 0 and 1, those that it alone
// answers.
PairedCounts pair(const EvaluationCell& first, const EvaluationCell& second) {
  PairedCounts out;
  for (size_t i = 0; i < first.scores.size(); ++i)
    out.add(first.scores[i] > second.scores[i], second.scores[i] > first.scores[i]);
  return out;
}

}  // namespace

uint64_t EvaluationCell::n_correct() const {
  return static_cast<uint64_t>(std::count(scores.begin(), scores.end(), 1.0));
}

double EvaluationCell::accuracy() const { return mean(scores); }

// Of all scores from 0 to 1 with the same mean, 0 and 1 alone vary most: Wilson's interval is wide
// enough for any. A sum between two whole numbers has the interval of both.
Interval EvaluationCell::interval() const {
  double sum = 0;
  for (const double score : scores) sum += score;
  return {wilson_interval(static_cast<uint64_t>(std::floor(sum + 1e-9)), scores.size()).low,
          wilson_interval(static_cast<uint64_t>(std::ceil(sum - 1e-9)), scores.size()).high};
}

bool Evaluation::is_kept_by_mask(const EvaluationCell& cell) const {
  const std::vector<double>& dense = control(cell).scores;
  Kept kept;
  for (size_t i = 0; i < cell.masked_correct.size(); ++i)
    if (dense[i] == 1.0) kept.add(cell.scores[i] == 1.0, cell.masked_correct[i]);
  return kept.without_choice();
}

const EvaluationCell& Evaluation::control(const EvaluationCell& cell) const {
  const auto i = static_cast<size_t>(&cell - cells.data());
  return cells[i - i % n_strategies];
}

std::vector<CellVerdict> Evaluation::verdicts() const {
  std::vector<CellVerdict> out;
  std::vector<PairedCounts> compared;
  for (const EvaluationCell& cell : cells) {
    out.push_back({.pairs = pair(control(cell), cell)});
    if (!is_control(cell)) compared.push_back(out.back().pairs);
  }
  const std::vector<Judgement> judged = judge(compared, options.margin);
  auto next = judged.begin();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (is_control(cells[i])) continue;
    out[i].p = next->p;
    out[i].verdict = (next++)->verdict;
  }
  return out;
}

Evaluation evaluate(Session& session, const std::vector<Arm>& arms,
                    const EvaluationOptions& options, const OnSample& on_sample,
                    const OnSetSample& on_set_sample) {
  Evaluation out;
  out.setup = session.setup();
  out.options = options;
  out.n_strategies = arms.size() + 1;
  out.cells = Evaluator(session, arms, options, on_sample, on_set_sample).run();
  return out;
}

}  // namespace kvasir::tool
