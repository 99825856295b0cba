// kvasir task eval: accuracy of a model's answers under strategies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/task/evaluation.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {
namespace {

const char* const kRule =
    "A sample is right when greedy decoding gives exactly the tokens of every answer. The "
    "interval of the accuracy is Wilson's at 95 %. The context is prefilled; question and "
    "answer are decoded, so that the strategy does not know the question beforehand "
    "(--question-in-prompt prefills the first question too). Dense attention always runs as "
    "control; each strategy is worse, suspicious (better), the same, equivalent (--margin) or "
    "cannot be told from it, by an exact McNemar test with Holm's correction. Each strategy that "
    "chooses also runs with nothing chosen in its sparse layers: where nine tenths of dense "
    "attention's right answers are kept so, it is said not to have engaged.";

struct EvalFlags {
  TaskFlags task;
  std::vector<std::string> strategies;
  std::string length = "1024", output;
  uint32_t n = 200;
  uint32_t parallel = 1;
  double margin = 0;  // points
  double most_attended = kMostAttendedPercent;
  bool question_in_prompt = false, force = false;
};

// Finds mistakes that need no model.
void check(const Options& options, const EvalFlags& flags) {
  if (flags.n == 0) throw input_error("-n must be above 0");
  if (options.seed >= kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(options.seed) +
                      ": seeds from 4294967296 on are for training: give a smaller one");
  if (flags.output == "-" && options.json)
    throw input_error("-o - and --json both write to stdout: give -o a file");
  check_overwrite(flags.output, flags.force);
  for (const Task task : parse_tasks(flags.task.tasks, "--task"))
    if (task == Task::kFiller) throw input_error("--task filler asks nothing: choose another task");
}

EvaluationOptions evaluation_options(const Options& options, const EvalFlags& flags) {
  EvaluationOptions out;
  out.tasks = parse_tasks(flags.task.tasks, "--task");
  out.lengths = parse_counts(flags.length, "--length");
  out.task = task_options(flags.task);
  out.seed = options.seed;
  out.n_samples = flags.n;
  out.n_parallel = flags.parallel;
  out.question_in_prompt = flags.question_in_prompt;
  out.margin = flags.margin / 100;
  out.most_attended = flags.most_attended;
  const uint32_t longest = *std::max_element(out.lengths.begin(), out.lengths.end());
  if (options.ctx_size && options.ctx_size < longest)
    throw input_error("-c " + std::to_string(options.ctx_size) + ": --length " +
                      std::to_string(longest) + " needs as many tokens");
  return out;
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
  const Evaluation evaluation = evaluate(session, arms, wanted, write);
  if (lines) lines->finish();
  print(evaluation, options.json);
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
  c->add_option("--task", f->task.tasks,
                "all, or names of tasks separated by commas; see `kvasir task generate --help`")
      ->required();
  c->add_option("--length", f->length, "Tokens of prompt and answers: 1024, or 1K,4K (1024)");
  c->add_option("-n", f->n, "Samples of each task and length");
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
  c->add_flag("--force", f->force, "Overwrite the file");
  add_json(*c, options->json);
  add_task_flags(*c, f->task);
  c->callback([=] { evaluate_tasks(*options, *f); });
}

}  // namespace kvasir::tool
