// kvasir ab: strategies side by side on the same samples, with verdicts against dense attention.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/error.h"
#include "tools/kvasir/ab/commands.h"
#include "tools/kvasir/ab/meta.h"
#include "tools/kvasir/ab/report.h"
#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/exit_code.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {
namespace {

namespace fs = std::filesystem;

constexpr int kFailIfHolds = 3, kArmFailed = 4;

const char* const kRule =
    "Dense attention always takes part. All answer the same samples, one sample after the other; a "
    "prompt is read once for those that read it alike. A sample is right when greedy decoding "
    "gives "
    "exactly the tokens of every answer; question and answer are decoded, so that no strategy "
    "knows "
    "the question beforehand (--question-in-prompt). What the table says of an arm is paired with "
    "dense: worse, suspicious (better), equivalent (--margin), the same, or that so few samples "
    "cannot tell, and how many would; exact McNemar tests with Holm's correction.\n\n"
    "Questions of one context (--questions) are no samples of their own: intervals and tests count "
    "contexts. Each strategy decodes by itself, so times can be compared, sample by sample; with "
    "--parallel they are not taken.\n\n"
    "Beside each arm that states a budget run exact top-k (oracle) and a random choice of as many "
    "tokens, and the arm masked, with nothing chosen. What dense has beyond the oracle is lost by "
    "the budget, what the oracle has beyond the arm by its choice; where the random choice, or "
    "none, keeps nine tenths of dense's answers, choosing did not matter, and the arm is said not "
    "to have engaged.\n\n"
    "Every sample is on the disk once it is answered: `kvasir ab --resume RUN` goes on with a run "
    "that was interrupted. `kvasir ab show RUN` prints a run again, `kvasir ab diff RUN RUN` "
    "compares two. An arm whose plugin crashes, hangs or returns nonsense fails alone.\n\n"
    "Exit codes: 0 done; 3 --fail-if holds; 4 an arm failed (and --fail-if does not hold); 2 a "
    "mistake in command or files; 1 a defect; 130 Ctrl-C.";

struct AbFlags {
  std::vector<std::string> arms, strategies;  // without and with -s
  TaskFlags task;
  SampleFileFlags samples;
  std::string length, sweep, stop_when, output, resume;
  std::vector<std::string> fail_if;
  uint32_t n = 50, n_questions = 1, n_parallel = 1, patience = 300;
  double margin = 0;  // points
  double most_attended = kMostAttendedPercent;
  bool question_in_prompt = false, no_ladder = false, quick = false, markdown = false;
};

std::string bundled_model() {
  constexpr const char* kName = "kvasir-retrieval-3m-f16.gguf";
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* folder : {"../share/kvasir/models", "../../../models"})
    if (const fs::path path = self / folder / kName; fs::exists(path))
      return fs::weakly_canonical(path).string();
  throw input_error(std::string("no model: give -m FILE.gguf (the small one of Kvasir, ") + kName +
                    ", is not beside this program)");
}

std::vector<std::string> arms_of(const AbFlags& f) {
  std::vector<std::string> all = f.arms;
  all.insert(all.end(), f.strategies.begin(), f.strategies.end());
  return all;
}

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
  out.margin = f.margin / 100;
  out.most_attended = f.most_attended;
  out.sweep_key = f.sweep.empty() ? "" : parse_sweep(f.sweep).key;
  out.measure_bandwidth = !f.quick;
  return out;
}

template <class T>
void refuse_twice(std::vector<T> values, const std::string& flag) {
  std::sort(values.begin(), values.end());
  if (std::adjacent_find(values.begin(), values.end()) != values.end())
    throw input_error(flag + ": names one of them twice");
}

// Finds mistakes that need no model.
void check(const Options& options, const AbFlags& f, const AbDeclared& declared) {
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

std::string default_folder() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, "kvasir-ab-%Y%m%d-%H%M%S", &parts);
  return text;
}

// What a run that is gone on with knows of its arms, by label.
struct Before {
  std::map<std::string, std::string> failed;  // why
  std::map<std::string, DeclaredRungs> rungs;
};

Before before_of(const std::string& folder) {
  Before out;
  if (!has_run(folder)) return out;
  const AbRun run = read_run(folder);
  out.failed = failed_in(run);
  for (const Json& s : run.meta.at("declared").at("strategies")) {
    DeclaredRungs& rungs = out.rungs[s.at("label")];
    rungs.is_masked = s.at("is_masked");
    if (const Json& ladder = s.at("ladder"); !ladder.is_null())
      rungs.ladder = {ladder.at("budget_tokens"), ladder.at("by_token"), ladder.at("shared")};
  }
  return out;
}

bool holds(const AbSummary& s, const std::vector<std::string>& fail_if) {
  return std::any_of(fail_if.begin(), fail_if.end(), [&](const std::string& what) {
    if (what == "worse") return s.any(Verdict::kWorse) || s.any_failed();
    if (what == "suspicious") return s.any(Verdict::kBetter);
    if (what == "undecided")
      return s.any(Verdict::kCannotTell) || s.any(Verdict::kNeverTell) ||
             (s.margin > 0 && s.any(Verdict::kSame));  // else it would be equivalent
    return std::any_of(s.cells.begin(), s.cells.end(),
                       [](const AbCell& cell) { return !cell.not_engaged.empty(); });
  });
}

void show(const AbSummary& summary, bool as_json, bool as_markdown) {
  if (as_markdown)
    print_text(to_markdown(summary));
  else
    print(summary, as_json);
}

// In the worker.
int work(Worker& worker, Options options, const AbFlags& f, AbDeclared declared,
         const std::string& folder) {
  Before before = before_of(folder);
  before.failed.insert(worker.ended_by().begin(), worker.ended_by().end());
  const auto sweep = f.sweep.empty() ? std::nullopt : std::optional(parse_sweep(f.sweep));
  std::vector<Entrant> lineup = resolve_lineup(options, arms_of(f), sweep, worker, before.failed);
  Session session(options);
  check_tasks(session, declared.options);
  const auto& lengths = declared.options.lengths;
  worker.may_take_long(true);
  const size_t n_sequences = lineup.size() * (f.no_ladder ? 1 : 4) * f.n_parallel;
  Engine& engine = session.load(*std::max_element(lengths.begin(), lengths.end()),
                                static_cast<uint32_t>(n_sequences));
  worker.may_take_long(false);
  std::vector<std::vector<StrategyId>> ids = {
      enter(engine, session, lineup, worker, !f.no_ladder, before.rungs, before.failed)};
  while (ids.size() < f.n_parallel) ids.push_back(enter_again(engine, session, lineup, worker));
  const AbParts parts{session, engine, lineup, ids, worker};
  worker.may_take_long(true);
  RunFolder run(folder, make_meta(parts, options, declared));
  worker.may_take_long(false);
  try {
    run_samples(parts, declared.options, run);
  } catch (const Interrupted&) {
    throw Interrupted("interrupted; what was answered is kept: kvasir ab --resume " + folder);
  }
  const AbSummary summary = summarise(run.run());
  write_reports(run, summary);
  show(summary, options.json, f.markdown);
  report_progress("report: " + run.path("report.html"));
  const int code = holds(summary, f.fail_if) ? kFailIfHolds : summary.any_failed() ? kArmFailed : 0;
  print_text_now("");
  worker.done(code);
  return code;
}

void run_ab(Options options, const AbFlags& f, AbDeclared declared) {
  // What an arm answers must not depend on who else takes part, nor on where a run went on.
  options.deterministic = true;
  if (options.model.empty()) options.model = bundled_model();
  check(options, f, declared);
  const std::string folder = !f.resume.empty()   ? f.resume
                             : !f.output.empty() ? f.output
                                                 : default_folder();
  if (f.resume.empty()) report_progress("run folder: " + folder);
  Worker worker = Worker::start(std::chrono::seconds(f.patience));
  const int code = work(worker, options, f, declared, folder);
  if (code != 0) throw ExitWith(code);
}

void add_flags(CLI::App& c, Options& options, AbFlags& f) {
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
  c.add_flag("--quick", f.quick, "Do not measure the machine's memory bandwidth");
  add_task_flags(c, f.task);
}

// What says how a run ends and where it goes: may be given anew with --resume.
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

// The flags of add_flags() that were given, as words of a command line, environment included.
std::vector<std::string> words_of(const CLI::App& c) {
  CLI::App declared;
  Options options;
  AbFlags flags;
  add_flags(declared, options, flags);
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

// A flag beside --resume that the run has declared is an error; what the environment says is not.
void refuse_declared(const CLI::App& c) {
  CLI::App declared;
  Options options;
  AbFlags flags;
  add_flags(declared, options, flags);
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

void resume(const Options& given, AbFlags flags) {
  if (!flags.output.empty())
    throw input_error("--resume writes to the folder of its run: leave out -o " + flags.output);
  const AbRun run = read_run(flags.resume);
  flags.resume = fs::absolute(flags.resume).string();
  CLI::App declared;
  Options options;
  add_flags(declared, options, flags);
  std::vector<std::string> words = run.meta.at("words");
  std::error_code error;
  fs::current_path(run.meta.at("folder").get<std::string>(), error);
  if (error)
    throw input_error("--resume " + flags.resume + ": the run began in the folder " +
                      run.meta.at("folder").get<std::string>() + ", which is not there any more");
  try {
    std::reverse(words.begin(), words.end());  // as CLI::App wants them
    declared.parse(words);
  } catch (const CLI::Error& e) {
    throw input_error("--resume " + flags.resume + ": run_meta.json: words: " + e.what());
  }
  options.json = given.json;
  AbDeclared of_run = declared_of(options, flags);
  of_run.words = run.meta.at("words").get<std::vector<std::string>>();
  of_run.measure_bandwidth = false;  // it was, where it should
  run_ab(options, flags, of_run);
}

}  // namespace

void refuse_before(const CLI::App& command) {
  for (const CLI::Option* option : command.get_parent()->get_options())
    if (option->count() > 0 && option->get_name() != "--help" && option->get_envname().empty())
      throw input_error("ab " + command.get_name() + " takes no " + option->get_name() +
                        " before its name");
}

void add_ab(CLI::App& app) {
  auto* c = app.add_subcommand(
      "ab", "Strategies side by side on the same samples, with verdicts that hold");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<AbFlags>();
  c->footer(kRule);
  add_flags(*c, *options, *f);
  add_run_flags(*c, *options, *f);
  add_ab_show(*c);
  add_ab_diff(*c);
  c->callback([=] {
    if (!c->get_subcommands().empty()) return;
    if (!f->resume.empty()) {
      refuse_declared(*c);
      return resume(*options, *f);
    }
    AbDeclared declared = declared_of(*options, *f);
    declared.words = words_of(*c);
    run_ab(*options, *f, declared);
  });
}

}  // namespace kvasir::tool
