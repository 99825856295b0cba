// See evaluation.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/evaluation.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <optional>

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

class Evaluator {
 public:
  Evaluator(Session& session, const std::vector<Arm>& arms, const EvaluationOptions& options,
            const OnSample& on_sample)
      : session_(session),
        arms_(arms),
        options_(options),
        on_sample_(on_sample),
        encoder_(session.tokenizer()),
        n_strategies_(static_cast<uint32_t>(arms.size() + 1)) {}

  std::vector<EvaluationCell> run() {
    for (const uint32_t length : options_.lengths)  // finds mistakes before anything runs
      for (const Task task : options_.tasks) TaskGenerator(task, options_.task, length, encoder_);
    const uint32_t longest = *std::max_element(options_.lengths.begin(), options_.lengths.end());
    // Each arm may have a mask.
    session_.load(longest, options_.n_parallel * (2 * n_strategies_ - 1));
    total_ = uint64_t{options_.n_samples} * options_.tasks.size() * options_.lengths.size() *
             n_strategies_;
    bar_.emplace("samples");
    for (const uint32_t length : options_.lengths) {
      for (const Task task : options_.tasks) {
        TaskGenerator generator(task, options_.task, length, encoder_);
        std::vector<Sample> samples;
        for (uint32_t i = 0; i < options_.n_samples; ++i) {
          samples.push_back(generator.make(options_.seed, i));
          stop_if_interrupted();
        }
        answer(length, samples);
      }
    }
    bar_.reset();
    return std::move(cells_);
  }

 private:
  void answer(uint32_t length, const std::vector<Sample>& samples);
  std::vector<EvaluationCell> open_cells(Engine& engine, uint32_t length, Task task);
  std::vector<std::vector<Given>> answer_all(
      Engine& engine, const std::vector<Sample>& samples,
      const std::function<void(size_t, const std::vector<Given>&)>& on_answered);
  void add(EvaluationCell& cell, const Sample& sample, const Given& given);
  void add_masks(Engine& engine);

  Session& session_;
  const std::vector<Arm>& arms_;
  const EvaluationOptions& options_;
  const OnSample& on_sample_;
  PieceEncoder encoder_;
  uint32_t n_strategies_, n_all_ = 0;  // dense attention and arms; their masks, too
  std::vector<StrategyId> masks_;      // [strategies], 0: it has none
  std::optional<ProgressBar> bar_;
  std::vector<EvaluationCell> cells_;
  uint64_t done_ = 0, total_ = 0;
};

// Strategies that are equal when they are masked share one. Their ids follow those of the arms.
void Evaluator::add_masks(Engine& engine) {
  masks_.assign(n_strategies_, 0);
  std::map<std::string, StrategyId> known;
  n_all_ = n_strategies_;
  for (StrategyId s = 1; s < n_strategies_; ++s) {
    if (!can_be_masked(engine.pipeline(s))) continue;
    const StrategyConfig mask = masked(arms_[s - 1].strategy);
    const auto [at, is_new] = known.emplace(configuration_of(mask), n_all_);
    if (is_new) n_all_ = engine.add_strategy(session_.pipeline(mask)) + 1;
    masks_[s] = at->second;
  }
}

std::vector<EvaluationCell> Evaluator::open_cells(Engine& engine, uint32_t length, Task task) {
  std::vector<EvaluationCell> cells(n_strategies_);
  cells[0].strategy = "dense";
  for (size_t i = 0; i < arms_.size(); ++i) {
    engine.add_strategy(session_.pipeline(arms_[i].strategy));
    cells[i + 1].strategy = arms_[i].label;
  }
  add_masks(engine);
  for (EvaluationCell& cell : cells) {
    cell.task = task;
    cell.length = length;
  }
  return cells;
}

void Evaluator::answer(uint32_t length, const std::vector<Sample>& samples) {
  const auto engine = session_.make_engine(length, options_.n_parallel * (2 * n_strategies_ - 1));
  std::vector<EvaluationCell> cells = open_cells(*engine, length, samples[0].task);
  const auto begin = std::chrono::steady_clock::now();
  const auto given = answer_all(*engine, samples, [&](size_t i, const std::vector<Given>& answers) {
    for (StrategyId s = 0; s < n_strategies_; ++s) {
      add(cells[s], samples[i], answers[s]);
      if (masks_[s]) cells[s].masked_correct.push_back(answers[masks_[s]].answer.correct);
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
    Engine& engine, const std::vector<Sample>& samples,
    const std::function<void(size_t, const std::vector<Given>&)>& on_answered) {
  Scheduler scheduler(engine, {.memory_bytes = session_.sequence_memory(), .restores = true});
  std::vector<std::vector<Given>> all(samples.size(), std::vector<Given>(n_all_));
  std::vector<uint32_t> n_left(samples.size(), n_all_);
  size_t n_submitted = 0, n_in_flight = 0, n_answered = 0;
  std::exception_ptr error;
  const auto submit = [&](size_t i) {
    std::vector<Request> requests;
    for (StrategyId s = 0; s < n_all_; ++s)
      requests.push_back(
          task_request(session_.tokenizer(), samples[i], s, options_.question_in_prompt,
                       [&, i, s](const TaskAnswer& answer, const RequestStatus& status) {
                         all[i][s].answer = answer;
                         all[i][s].status = status;
                         if (status.error && !error) error = status.error;
                         if (--n_left[i] == 0) --n_in_flight;
                         if (s < n_strategies_) bar_->update(++done_, total_);
                       }));
    const auto ids = scheduler.submit_together(std::move(requests));
    for (StrategyId s = 0; s < n_all_; ++s) all[i][s].id = ids[s];
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

void Evaluator::add(EvaluationCell& cell, const Sample& sample, const Given& given) {
  cell.correct.push_back(given.answer.correct);
  cell.n_tokens += given.answer.n_tokens;
  cell.n_right += given.answer.n_right;
  cell.n_decoded += given.status.decoded_tokens;
  if (on_sample_) on_sample_(result_of(sample, cell, given.answer));
}

PairedCounts pair(const EvaluationCell& first, const EvaluationCell& second) {
  PairedCounts out;
  for (size_t i = 0; i < first.correct.size(); ++i) out.add(first.correct[i], second.correct[i]);
  return out;
}

}  // namespace

uint64_t EvaluationCell::n_correct() const {
  return static_cast<uint64_t>(std::count(correct.begin(), correct.end(), true));
}

bool Evaluation::is_kept_by_mask(const EvaluationCell& cell) const {
  const std::vector<bool>& dense = control(cell).correct;
  uint64_t n_right = 0, n_kept = 0, n_kept_by_mask = 0;
  for (size_t i = 0; i < cell.masked_correct.size(); ++i) {
    n_right += dense[i];
    n_kept += dense[i] && cell.correct[i];
    n_kept_by_mask += dense[i] && cell.masked_correct[i];
  }
  return n_right > 0 && 10 * n_kept >= 9 * n_right && 10 * n_kept_by_mask >= 9 * n_right;
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
                    const EvaluationOptions& options, const OnSample& on_sample) {
  Evaluation out;
  out.setup = session.setup();
  out.options = options;
  out.n_strategies = arms.size() + 1;
  out.cells = Evaluator(session, arms, options, on_sample).run();
  return out;
}

}  // namespace kvasir::tool
