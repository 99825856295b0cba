// kvasir task eval: the same samples through dense attention and other strategies; how many each
// answers exactly.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/serving/scheduler.h"
#include "core/task/evaluate.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

const char* const kRule =
    "A sample is right when greedy decoding gives every token of every answer, and nothing "
    "else in its place; the accuracy's interval is Wilson's at 95 %. The context is prefilled; "
    "question and answer are decoded, so that the strategy does not know the question "
    "beforehand (--question-in-prompt changes that). Dense attention is always run as control.";

struct EvalFlags {
  TaskFlags task;
  std::vector<std::string> strategies;
  std::string length = "1024", output;
  uint32_t n = 200;
  uint32_t parallel = 1;
  bool question_in_prompt = false;
};

// Of one task, length and strategy.
struct Cell {
  Task task;
  uint32_t length;
  std::string strategy;
  std::vector<bool> correct = {};  // per sample
  uint64_t n_tokens = 0, n_right = 0, n_decoded = 0;
  std::string read_with = {};  // the strategy whose pass over the prompts it shared; empty: its own
  double seconds = 0;          // in its own part of the steps
  double wall_seconds = 0;     // of all strategies of the task and length
  Json engagement = {};

  uint64_t n_correct() const {
    return static_cast<uint64_t>(std::count(correct.begin(), correct.end(), true));
  }
};

// Samples that dense attention answered and this strategy did not, and the other way round.
uint64_t count_changes(const Cell& from, const Cell& to) {
  uint64_t n = 0;
  for (size_t i = 0; i < from.correct.size(); ++i) n += from.correct[i] && !to.correct[i];
  return n;
}

class Evaluation {
 public:
  Evaluation(Session& session, const Options& options, const EvalFlags& flags)
      : session_(session), options_(options), flags_(flags), encoder_(session.tokenizer()) {
    if (!flags.output.empty()) rows_.emplace(flags.output);
  }

  void run(const std::vector<Arm>& arms) {
    const std::vector<Task> tasks = parse_tasks(flags_.task.tasks, "--task");
    const std::vector<uint32_t> lengths = parse_counts(flags_.length, "--length");
    const TaskOptions task_flags = task_options(flags_.task);
    for (const uint32_t length : lengths)  // mistakes before anything is run
      for (const Task task : tasks) TaskGenerator(task, task_flags, length, encoder_);
    const uint32_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (options_.ctx_size && options_.ctx_size < longest)
      throw input_error("-c " + std::to_string(options_.ctx_size) + ": --length " +
                        std::to_string(longest) + " needs as many tokens");
    n_strategies_ = static_cast<uint32_t>(arms.size() + 1);
    session_.load(longest, flags_.parallel * n_strategies_);
    total_ = uint64_t{flags_.n} * tasks.size() * lengths.size() * (arms.size() + 1);
    bar_.emplace("samples", !options_.json);
    for (const uint32_t length : lengths) {
      for (const Task task : tasks) {
        TaskGenerator generator(task, task_flags, length, encoder_);
        std::vector<Sample> samples;
        for (uint32_t i = 0; i < flags_.n; ++i) samples.push_back(generator.make(options_.seed, i));
        answer(arms, length, samples);
      }
    }
    bar_.reset();
    if (rows_) rows_->flush();
  }

  void print(size_t n_arms) const { options_.json ? print_report(n_arms) : print_table(n_arms); }

 private:
  // What became of one sample under one strategy.
  struct Answer {
    RequestId id = 0;
    TaskAnswer given = {};
    RequestStatus status = {};
  };

  void answer(const std::vector<Arm>& arms, uint32_t length, const std::vector<Sample>& samples) {
    const auto engine = session_.make_engine(length, flags_.parallel * n_strategies_);
    std::vector<Cell> cells{{.task = samples[0].task, .length = length, .strategy = "dense"}};
    for (const Arm& arm : arms) {
      engine->add_strategy(session_.pipeline(arm.strategy));
      cells.push_back({.task = samples[0].task, .length = length, .strategy = arm.label});
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto answers = answer_all(*engine, samples);
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (StrategyId s = 0; s < n_strategies_; ++s) {
      Cell& cell = cells[s];
      for (size_t i = 0; i < samples.size(); ++i) add(cell, samples[i], answers[i][s].given);
      for (const auto& answer : answers) cell.n_decoded += answer[s].status.decoded_tokens;
      const StrategyId reader = reader_of(answers[0], s);
      cell.read_with = reader == s ? "" : cells[reader].strategy;
      cell.seconds = static_cast<double>(engine->prefill_engagement(s).total_nanos +
                                         engine->decode_engagement(s).total_nanos) /
                     1e9;
      cell.wall_seconds = wall;
      cell.engagement = to_json(*engine, {}, s);
    }
    std::move(cells.begin(), cells.end(), std::back_inserter(cells_));
  }

  // Requests get ids in the order of strategies.
  static StrategyId reader_of(const std::vector<Answer>& answers, StrategyId strategy) {
    const auto is_reader = [&](const Answer& a) {
      return a.id == answers[strategy].status.prompt_read_by;
    };
    return static_cast<StrategyId>(std::find_if(answers.begin(), answers.end(), is_reader) -
                                   answers.begin());
  }

  // [samples][strategies]; --parallel samples at a time.
  std::vector<std::vector<Answer>> answer_all(Engine& engine, const std::vector<Sample>& samples) {
    Scheduler scheduler(engine, {.memory_bytes = session_.sequence_memory()});
    std::vector<std::vector<Answer>> answers(samples.size(), std::vector<Answer>(n_strategies_));
    size_t n_submitted = 0, n_in_flight = 0;
    std::exception_ptr error;
    const auto submit = [&](size_t i) {
      std::vector<Request> requests;
      const auto n_left = std::make_shared<uint32_t>(n_strategies_);
      for (StrategyId s = 0; s < n_strategies_; ++s)
        requests.push_back(
            task_request(session_.tokenizer(), samples[i], s, flags_.question_in_prompt,
                         [&, i, s, n_left](const TaskAnswer& given, const RequestStatus& status) {
                           answers[i][s].given = given;
                           answers[i][s].status = status;
                           if (status.error && !error) error = status.error;
                           if (--*n_left == 0) --n_in_flight;
                           bar_->update(++done_, total_);
                         }));
      const auto ids = scheduler.submit_together(std::move(requests));
      for (StrategyId s = 0; s < n_strategies_; ++s) answers[i][s].id = ids[s];
    };
    do {
      while (n_in_flight < flags_.parallel && n_submitted < samples.size()) {
        ++n_in_flight;
        submit(n_submitted++);
      }
    } while (!error && scheduler.step());
    if (error) std::rethrow_exception(error);
    return answers;
  }

  void add(Cell& cell, const Sample& sample, const TaskAnswer& answer) {
    cell.correct.push_back(answer.correct);
    cell.n_tokens += answer.n_tokens;
    cell.n_right += answer.n_right;
    if (!rows_) return;
    Json row{{"task", name(cell.task)},
             {"length", cell.length},
             {"strategy", cell.strategy},
             {"seed", sample.seed},
             {"index", sample.index},
             {"prompt_tokens", sample.token_span(sample.turns[0].answer).begin},
             {"correct", answer.correct},
             {"answer_tokens", answer.n_tokens},
             {"answer_tokens_right", answer.n_right},
             {"expected", Json::array()},
             {"given", answer.given},
             {"depths", Json::array()}};
    for (const Turn& turn : sample.turns) row["expected"].push_back(sample.bytes(turn.answer));
    for (const Planted& p : sample.planted)
      if (p.turn >= 0) row["depths"].push_back(plain(static_cast<float>(p.depth)));
    rows_->write(row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  // The control of a cell is the first of its group: cells are task by task, dense first.
  const Cell& control(size_t i, size_t n_arms) const { return cells_[i - i % (n_arms + 1)]; }

  void print_report(size_t n_arms) const {
    Json report{{"model", options_.model},
                {"compute", session_.compute() == Compute::kBF16 ? "bf16" : "f32"},
                {"deterministic", session_.deterministic()},
                {"threads", session_.pool().n_workers()},
                {"seed", options_.seed},
                {"samples", flags_.n},
                {"question_in_prompt", flags_.question_in_prompt},
                {"parallel", flags_.parallel},
                {"cells", Json::array()}};
    for (size_t i = 0; i < cells_.size(); ++i) {
      const Cell& cell = cells_[i];
      const Interval interval = wilson_interval(cell.n_correct(), flags_.n);
      report["cells"].push_back(
          {{"task", name(cell.task)},
           {"length", cell.length},
           {"strategy", cell.strategy},
           {"samples", flags_.n},
           {"correct", cell.n_correct()},
           {"accuracy", static_cast<double>(cell.n_correct()) / flags_.n},
           {"accuracy_low", interval.low},
           {"accuracy_high", interval.high},
           {"lost", count_changes(control(i, n_arms), cell)},
           {"won", count_changes(cell, control(i, n_arms))},
           {"answer_tokens", cell.n_tokens},
           {"answer_tokens_right", cell.n_right},
           {"prefill_shared_with", cell.read_with.empty() ? Json() : Json(cell.read_with)},
           {"seconds", cell.seconds},
           {"wall_seconds", cell.wall_seconds},
           {"engagement", cell.engagement}});
    }
    print_json(report);
  }

  void print_table(size_t n_arms) const {
    Table table({"task", "length", "strategy", "right", "accuracy", "95 % interval", "lost", "won",
                 "tokens right", "attended", "MB/step", "fallbacks", "s"},
                {1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    for (size_t i = 0; i < cells_.size(); ++i) {
      const Cell& cell = cells_[i];
      const auto number = [&](const char* key) { return cell.engagement[key].get<double>(); };
      const double read = number("kv_bytes_read") + number("representative_bytes_read") +
                          number("selector_bytes_read");
      const Interval interval = wilson_interval(cell.n_correct(), flags_.n);
      const bool is_control = &cell == &control(i, n_arms);
      const auto changes = [&](uint64_t n) { return is_control ? "" : std::to_string(n); };
      table.add(
          {name(cell.task), std::to_string(cell.length), cell.strategy,
           format("%llu/%u", static_cast<unsigned long long>(cell.n_correct()), flags_.n),
           format("%.1f %%", 100.0 * static_cast<double>(cell.n_correct()) / flags_.n),
           format("%.1f - %.1f %%", 100 * interval.low, 100 * interval.high),
           changes(count_changes(control(i, n_arms), cell)),
           changes(count_changes(cell, control(i, n_arms))),
           format("%.1f %%", 100.0 * static_cast<double>(cell.n_right) /
                                 static_cast<double>(std::max<uint64_t>(cell.n_tokens, 1))),
           format("%.1f %%",
                  100.0 * number("tokens_attended") / std::max(1.0, number("tokens_considered"))),
           format("%.3f", read / 1e6 / static_cast<double>(std::max<uint64_t>(cell.n_decoded, 1))),
           cell.engagement["fallbacks"].dump(), format("%.1f", cell.seconds)});
    }
    std::fputs(table.text().c_str(), stdout);
    std::printf("\nWall time, %u sample%s at once:", flags_.parallel,
                flags_.parallel > 1 ? "s" : "");
    for (size_t i = 0; i < cells_.size(); i += n_arms + 1)
      std::printf("%s %s %u: %.1f s", i ? "," : "", name(cells_[i].task), cells_[i].length,
                  cells_[i].wall_seconds);
    const auto shares = [](const Cell& cell) { return !cell.read_with.empty(); };
    const auto n_shared = std::count_if(cells_.begin(), cells_.begin() + n_arms + 1, shares);
    std::printf(
        ". %td of %zu strategies shared a pass over the prompts with another; it counts for "
        "that one.\n",
        n_shared, n_arms + 1);
  }

  Session& session_;
  const Options& options_;
  const EvalFlags& flags_;
  PieceEncoder encoder_;
  std::optional<Output> rows_;
  std::optional<ProgressBar> bar_;
  std::vector<Cell> cells_;
  uint64_t done_ = 0, total_ = 0;
  uint32_t n_strategies_ = 1;
};

void evaluate_tasks(Options options, const EvalFlags& flags) {
  if (flags.n == 0) throw input_error("-n must be above 0");
  if (options.seed >= kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(options.seed) +
                      ": seeds from 4294967296 on are for training: give a smaller one");
  if (flags.output == "-" && options.json)
    throw input_error("-o - and --json both write to stdout: give -o a file");
  for (const Task task : parse_tasks(flags.task.tasks, "--task"))
    if (task == Task::kFiller) throw input_error("--task filler asks nothing: choose another task");
  const std::vector<Arm> arms = resolve_arms(options, flags.strategies);
  Session session(options);
  Evaluation evaluation(session, options, flags);
  evaluation.run(arms);
  evaluation.print(arms.size());
}

}  // namespace

void add_task_eval(CLI::App& task) {
  auto* c = task.add_subcommand("eval", "Accuracy of a model's answers under strategies");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<EvalFlags>();
  options->seed = 1;
  c->footer(kRule);
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, f->strategies);
  c->add_option("--task", f->task.tasks, "all, or some, as `kvasir task generate` names them")
      ->required();
  c->add_option("--length", f->length, "Tokens of prompt and answers: 1024, or 1K,4K (1024)");
  c->add_option("-n", f->n, "Samples of each task and length");
  c->remove_option(c->get_option("--parallel"));  // elsewhere it is not there yet
  c->add_option("--np,--parallel", f->parallel,
                "Samples answered at once; the answers are the same (1)")
      ->check(CLI::Range(1, 256));
  c->add_flag("--question-in-prompt", f->question_in_prompt,
              "Prefill the first question with the context");
  c->add_option("-o,--output", f->output, "JSON lines, one per sample and strategy");
  c->add_flag("--json", options->json, "One JSON document on stdout, nothing else there");
  add_task_flags(*c, f->task);
  c->callback([=] { evaluate_tasks(*options, *f); });
}

}  // namespace kvasir::tool
