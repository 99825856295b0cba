// kvasir task eval: accuracy of a model's answers under strategies.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/task/evaluation.h"
#include "tools/kvasir/task/flags.h"
#include "tools/kvasir/task/prediction_files.h"

namespace kvasir::tool {
namespace {

const char* const kEvalRule =
    "Judged by tokens, a sample is right when greedy decoding gives exactly the tokens of every "
    "answer. Judged by text, the model writes its answers, a scorer gives 0 to 1, and the accuracy "
    "is the mean; what it wrote stays in the context of later questions. `kvasir task list` says "
    "which task is judged how; samples of files are judged by text. The interval of the accuracy "
    "is Wilson's at 95 %. The context is prefilled; question and answer are decoded, so that the "
    "strategy does not know the question beforehand "
    "(--question-in-prompt prefills the first question too). Dense attention always runs as "
    "control; each strategy is worse, suspicious (better), the same, equivalent (--margin) or "
    "cannot be told from it, by an exact McNemar test (of scores: the sign test of the samples "
    "that differ) with Holm's correction. Each strategy that "
    "chooses also runs with nothing chosen in its sparse layers: where nine tenths of dense "
    "attention's right answers are kept so, it is said not to have engaged.\n\n"
    "docs/tasks.md shows every task, the formats of --samples and --predictions, and what is "
    "ignored in them.";

constexpr uint32_t kUsualSamples = 200;

struct EvalFlags {
  TaskFlags task;
  SampleFileFlags samples;
  std::string judge, predictions, predictions_format;
  std::vector<std::string> strategies;
  std::string length, output;
  std::optional<uint32_t> n;
  uint32_t parallel = 1;
  double margin = 0;  // points
  double most_attended = kMostAttendedPercent;
  bool question_in_prompt = false, force = false;
};

// Finds mistakes that need no model.
void check(const Options& options, const EvalFlags& flags) {
  const bool from_files = !flags.samples.files.empty();
  if (from_files == !flags.task.tasks.empty())
    throw input_error("give one of --task NAMES (samples are made) and --samples FILES");
  if (from_files && !flags.length.empty())
    throw input_error("--length " + flags.length + ": samples of files have the length they have");
  if (from_files && !flags.task.depths.empty())
    throw input_error("--depths " + flags.task.depths + ": samples of files are placed already");
  if (!from_files && !flags.predictions.empty())
    throw input_error("--predictions " + flags.predictions +
                      ": answers to samples of files are written: give --samples");
  if (!flags.predictions.empty() && flags.judge == "tokens")
    throw input_error("--judge tokens writes no answers that --predictions could hold");
  if (flags.n == 0u) throw input_error("-n must be above 0");
  if (options.seed >= kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(options.seed) +
                      ": seeds from 4294967296 on are for training: give a smaller one");
  if (flags.output == "-" && options.json)
    throw input_error("-o - and --json both write to stdout: give -o a file");
  check_overwrite(flags.output, flags.force);
  if (from_files) return;
  for (const Task task : parse_tasks(flags.task.tasks, "--task"))
    if (task == Task::kFiller) throw input_error("--task filler asks nothing: choose another task");
}

EvaluationOptions evaluation_options(const Options& options, const EvalFlags& flags) {
  EvaluationOptions out;
  if (flags.samples.files.empty()) {
    out.tasks = parse_tasks(flags.task.tasks, "--task");
    out.lengths = parse_counts(flags.length.empty() ? "1024" : flags.length, "--length");
  } else {
    out.sets = read_sample_sets(flags.samples, flags.n.value_or(0));
  }
  if (!flags.judge.empty()) out.judging = flags.judge == "text" ? Judging::kText : Judging::kTokens;
  out.task = task_options(flags.task);
  out.seed = options.seed;
  out.n_samples = flags.n.value_or(kUsualSamples);
  out.n_parallel = flags.parallel;
  out.question_in_prompt = flags.question_in_prompt;
  out.margin = flags.margin / 100;
  out.most_attended = flags.most_attended;
  const uint32_t longest =
      out.lengths.empty() ? 0 : *std::max_element(out.lengths.begin(), out.lengths.end());
  if (options.ctx_size && options.ctx_size < longest)
    throw input_error("-c " + std::to_string(options.ctx_size) + ": --length " +
                      std::to_string(longest) + " needs as many tokens");
  return out;
}

// That of the samples, unless told otherwise.
SampleFormat prediction_format(const EvalFlags& flags, const EvaluationOptions& options) {
  const SampleFormat format =
      flags.predictions_format.empty()
          ? options.sets[0].format
          : sample_format_by_name(flags.predictions_format, "--predictions-format");
  for (const SampleSet& set : options.sets)
    for (const SampleText& sample : set.samples)
      if (sample.turns.size() > 1)
        throw input_error(
            "--predictions: " + sample.task +
            " asks several questions in turn, which files of predictions cannot hold");
  if (format == SampleFormat::kKvasir)
    throw input_error("--predictions: no scorer reads kvasir's format: give --predictions-format");
  return format;
}

void evaluate_tasks(Options options, const EvalFlags& flags) {
  check(options, flags);
  const std::vector<Arm> arms = resolve_arms(options, flags.strategies);
  const EvaluationOptions wanted = evaluation_options(options, flags);
  Session session(options);
  std::optional<Output> lines;
  if (!flags.output.empty()) lines.emplace(flags.output, Output::As::kLines);
  const auto write = [&](const SampleResult& result) {
    if (lines)
      lines->write(to_json(result).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  };
  std::optional<PredictionFiles> predictions;
  if (!flags.predictions.empty()) {
    predictions.emplace(flags.predictions, prediction_format(flags, wanted), flags.force);
    for (const SampleSet& set : wanted.sets) {
      predictions->open("dense", set.task);
      for (const Arm& arm : arms) predictions->open(arm.label, set.task);
    }
  }
  const auto write_prediction = [&](const SampleText& sample, const SampleResult& result) {
    if (predictions)
      predictions->add(result.strategy, sample, result.answer.given[0], result.answer.score);
  };
  const Evaluation evaluation = evaluate(session, arms, wanted, write, write_prediction);
  if (predictions) predictions->finish();
  if (lines) lines->finish();
  print(evaluation, options.json);
}

}  // namespace

void add_task_eval(CLI::App& task) {
  auto* c = task.add_subcommand("eval", "Accuracy of a model's answers under strategies");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<EvalFlags>();
  options->seed = 1;
  c->footer(kEvalRule);
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, f->strategies);
  c->add_option("--task", f->task.tasks,
                "all, or names of tasks separated by commas; see `kvasir task list`");
  add_sample_file_flags(*c, f->samples);
  add_scoring_flags(*c, f->samples);
  c->add_option("--judge", f->judge,
                "tokens (each expected token is the most likely one) or text (as each task says)")
      ->check(CLI::IsMember({"tokens", "text"}));
  c->add_option("--length", f->length, "Tokens of prompt and answers: 1024, or 1K,4K (1024)");
  c->add_option("-n", f->n, "Samples of each task and length (200; of files all)");
  c->remove_option(
      c->get_option("--parallel"));  // add_model_flags() adds it as a flag that does nothing yet
  c->add_option("--np,--parallel", f->parallel,
                "Samples answered at once; the answers are the same (1)")
      ->check(CLI::Range(1, 256));
  c->add_flag("--question-in-prompt", f->question_in_prompt,
              "Prefill the first question with the context");
  c->add_option("--margin", f->margin,
                "Points of accuracy that do not matter: what surely differs from dense by less is "
                "equivalent (0)")
      ->check(CLI::Range(0.0, 100.0));
  add_most_attended(*c, f->most_attended);
  c->add_option("-o,--output", f->output, "JSON lines, one per sample and strategy");
  c->add_option("--predictions", f->predictions,
                "Folder for the answers to --samples, as the scorers of their harness read them");
  c->add_option("--predictions-format", f->predictions_format,
                "ruler, infinitebench, longbench2 or lm-eval (that of the samples)");
  c->add_flag("--force", f->force, "Overwrite files");
  add_json(*c, options->json);
  add_task_flags(*c, f->task);
  c->callback([=] { evaluate_tasks(*options, *f); });
}

}  // namespace kvasir::tool
