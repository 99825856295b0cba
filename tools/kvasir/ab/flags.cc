// See flags.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "tools/kvasir/ab/lineup.h"
#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/cli/parse.h"

namespace kvasir::tool {
namespace {

// Samples of files are compared by exact tokens, as those that are made.
void add_samples(const AbFlags& f, AbOptions& options) {
  for (const std::string& given : {f.task.tasks, f.length, f.task.depths})
    if (!given.empty())
      throw input_error("--samples: its samples are what they are: leave out " + given);
  options.sample_files = f.samples.files;
  options.sets = read_sample_sets(f.samples, f.n);
  for (const SampleSet& set : options.sets) {
    options.n_samples = std::min(options.n_samples, static_cast<uint32_t>(set.samples.size()));
    for (const SampleText& sample : set.samples)
      for (const AskedText& asked : sample.turns)
        if (asked.references.size() != 1)
          throw input_error("--samples: " + set.task + ", sample " + sample.id +
                            ": has several right texts, and here answers are compared token by "
                            "token: give it to kvasir task eval");
  }
}

template <class T>
void refuse_twice(std::vector<T> values, const std::string& flag) {
  std::sort(values.begin(), values.end());
  if (std::adjacent_find(values.begin(), values.end()) != values.end())
    throw input_error(flag + ": names one of them twice");
}

}  // namespace

std::vector<std::string> arms_of(const AbFlags& f) {
  std::vector<std::string> all = f.arms;
  all.insert(all.end(), f.strategies.begin(), f.strategies.end());
  return all;
}

AbDeclared declared_of(const Options& options, const AbFlags& f) {
  AbDeclared out;
  out.options.n_samples = f.n;
  if (f.samples.files.empty()) {
    out.options.tasks =
        parse_tasks(f.task.tasks.empty() ? "passkey,kv_retrieval" : f.task.tasks, "--task");
    out.options.lengths = parse_counts(f.length.empty() ? "4096" : f.length, "--length");
  } else {
    add_samples(f, out.options);
  }
  out.options.task = task_options(f.task);
  out.options.seed = options.seed;
  out.options.n_questions = f.n_questions;
  if (f.n_questions > 1) out.options.task.queries = {f.n_questions, f.n_questions};
  out.options.question_in_prompt = f.question_in_prompt;
  out.options.stop_when_decided = !f.stop_when.empty();
  out.options.n_parallel = f.n_parallel;
  out.options.n_layer_samples = f.n_layer_samples;
  out.margin = f.margin / 100;
  out.most_attended = f.most_attended;
  out.sweep_key = f.sweep.empty() ? "" : parse_sweep(f.sweep).key;
  out.measure_bandwidth = !f.quick;
  return out;
}

void check_flags(const Options& options, const AbFlags& f, const AbDeclared& declared) {
  if (arms_of(f).empty())
    throw input_error(
        "no arm: name strategies (presets or files), as in `kvasir ab quest snapkv streaming`");
  if (f.n == 0) throw input_error("-n must be above 0");
  if (options.seed >= kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(options.seed) +
                      ": seeds from 4294967296 on are for training: give a smaller one");
  for (const Task task : declared.options.tasks)
    if (task == Task::kFiller) throw input_error("--task filler asks nothing: choose another task");
  refuse_twice(task_names(declared.options), f.samples.files.empty()
                                                 ? "--task " + f.task.tasks
                                                 : std::string("--samples: a task"));
  refuse_twice(declared.options.lengths, "--length " + f.length);
  const auto& lengths = declared.options.lengths;
  const uint32_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (options.ctx_size && options.ctx_size < longest)
    throw input_error("-c " + std::to_string(options.ctx_size) + ": --length " +
                      std::to_string(longest) + " needs as many tokens");
  if (f.n_questions > 1 && !f.task.queries.empty())
    throw input_error("--questions says how many are asked: leave out --queries " + f.task.queries);
  if (f.markdown && options.json) throw input_error("give one of --markdown and --json");
  if (f.resume.empty() && !f.output.empty() && has_run(f.output))
    throw input_error("-o " + f.output + ": has a run already: go on with `kvasir ab --resume " +
                      f.output + "`, or give another folder");
}

void add_declared_flags(CLI::App& c, Options& options, AbFlags& f) {
  options.seed = 1;
  c.add_option("ARMS", f.arms, "Strategy files or presets");
  add_model_flags(c, options);
  c.remove_option(c.get_option("--parallel"));  // a flag that does nothing; see add_run_flags()
  add_arm_flags(c, options, f.strategies);
  c.add_option("--task", f.task.tasks,
               "all, or names of tasks separated by commas; see `kvasir task list` "
               "(passkey,kv_retrieval)");
  add_sample_file_flags(c, f.samples);
  c.add_option("--length", f.length, "Tokens of prompt and answers: 4096, or 1K,4K (4096)");
  c.add_option("-n", f.n, "Samples of each task and length (50)");
  c.add_option(
       "--questions", f.n_questions,
       "Questions about each context, one after another, each judged by itself: what is "
       "lost when a question comes later. For tasks with several things to ask for "
       "(kv_retrieval, mqar, needle_multi_query). 1: all that the task asks, judged together "
       "(1)")
      ->check(CLI::Range(1u, 16u));
  c.add_flag("--question-in-prompt", f.question_in_prompt,
             "Prefill the first question with the context");
  c.add_option("--sweep", f.sweep,
               "Each arm once for every value of a key: selector.budget_tokens=256,512,1024");
  c.add_option("--margin", f.margin,
               "Points of accuracy that do not matter: what surely differs from dense by less is "
               "equivalent (0)")
      ->check(CLI::Range(0.0, 100.0));
  add_most_attended(c, f.most_attended);
  c.add_option(
       "--stop-when", f.stop_when,
       "decided: draw no more samples of a task and length once all its arms are decided, "
       "by a confidence sequence, which may be looked at after every sample. -n is the most")
      ->check(CLI::IsMember({"decided"}));
  c.add_flag("--no-ladder", f.no_ladder,
             "Without exact top-k, a random choice of as many tokens and no choice for each arm: "
             "less time, no "
             "proof that an arm's choice matters here");
  c.add_option("--layer-samples", f.n_layer_samples,
               "Of each task and length: samples on which every layer of every arm is looked at, "
               "for the attention mass that its choice captures. 0: none, which saves a prefill "
               "without the model for each arm (1)");
  c.add_flag("--quick", f.quick, "Do not measure the machine's memory bandwidth");
  add_task_flags(c, f.task);
}

void add_run_flags(CLI::App& c, Options& options, AbFlags& f) {
  c.add_option("-o,--output", f.output, "Folder of the run (kvasir-ab-DATE-TIME)");
  c.add_option("--resume", f.resume, "Go on with the run of this folder, as it was declared");
  c.add_option(
       "--fail-if", f.fail_if,
       "Exit with 3 when an arm is worse (or failed), suspicious, undecided or not-engaged; "
       "several separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"worse", "suspicious", "undecided", "not-engaged"}));
  c.add_option("--parallel,--np", f.n_parallel,
               "Samples answered at once: the same answers in less time, but no times of their own "
               "(1)")
      ->check(CLI::Range(1u, 64u));
  c.add_option("--patience", f.patience,
               "Seconds that a step may take; a strategy that takes longer has failed (300)")
      ->check(CLI::Range(1u, 1000000u));
  c.add_flag("--markdown", f.markdown, "The report in Markdown on stdout");
  add_json(c, options.json);
}

std::vector<std::string> words_of(const CLI::App& c) {
  CLI::App declared;
  Options options;
  AbFlags flags;
  add_declared_flags(declared, options, flags);
  std::vector<std::string> words, arms;
  for (const CLI::Option* option : declared.get_options()) {
    const CLI::Option* given = c.get_option_no_throw(option->get_name());
    if (!given || given->count() == 0 || option->get_name() == "--help") continue;
    for (const std::string& value : given->results()) {
      if (given->get_positional())
        arms.push_back(value);
      else if (!given->get_lnames().empty())
        words.push_back("--" + given->get_lnames()[0] + "=" + value);
      else
        words.insert(words.end(), {"-" + given->get_snames()[0], value});
    }
  }
  words.emplace_back("--");
  words.insert(words.end(), arms.begin(), arms.end());
  return words;
}

void refuse_declared(const CLI::App& c) {
  CLI::App declared;
  Options options;
  AbFlags flags;
  add_declared_flags(declared, options, flags);
  for (const CLI::Option* option : declared.get_options()) {
    const CLI::Option* given = c.get_option_no_throw(option->get_name());
    if (!given || given->count() == 0) continue;
    const char* variable =
        given->get_envname().empty() ? nullptr : std::getenv(given->get_envname().c_str());
    if (!variable)
      throw input_error("--resume goes on as the run was declared: leave out " + given->get_name() +
                        " " + given->results()[0]);
  }
}

}  // namespace kvasir::tool
