// kvasir ab: strategies side by side on the same samples, with verdicts against dense attention.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/error.h"
#include "tools/kvasir/ab/commands.h"
#include "tools/kvasir/ab/flags.h"
#include "tools/kvasir/ab/layer_run.h"
#include "tools/kvasir/ab/meta.h"
#include "tools/kvasir/ab/report.h"
#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/exit_code.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/commands.h"

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

// Answers all samples; the engines and the weights are gone when this returns.
std::unique_ptr<RunFolder> answer(Worker& worker, const Options& options, const AbFlags& f,
                                  AbDeclared& declared, std::vector<Entrant>& lineup,
                                  const Before& before, const std::string& folder) {
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
  auto run = std::make_unique<RunFolder>(folder, make_meta(parts, options, declared));
  worker.may_take_long(false);
  run_samples(parts, declared.options, *run);
  worker.may_take_long(true);
  return run;
}

// In the worker.
int work(Worker& worker, Options options, const AbFlags& f, AbDeclared declared,
         const std::string& folder) {
  Before before = before_of(folder);
  before.failed.insert(worker.ended_by().begin(), worker.ended_by().end());
  const auto sweep = f.sweep.empty() ? std::nullopt : std::optional(parse_sweep(f.sweep));
  std::vector<Entrant> lineup = resolve_lineup(options, arms_of(f), sweep, worker, before.failed);
  std::unique_ptr<RunFolder> run;
  try {
    run = answer(worker, options, f, declared, lineup, before, folder);
    const bool has_layers =
        run->run().meta.at("declared").at("no_layers_because").get<std::string>().empty();
    if (has_layers && declared.options.n_layer_samples > 0)
      look_at_layers(options, declared.options, lineup, worker, *run);
  } catch (const Interrupted&) {
    throw Interrupted("interrupted; what was answered is kept: kvasir ab --resume " + folder);
  }
  const AbSummary summary = summarise(run->run());
  write_reports(*run, summary);
  show(summary, options.json, f.markdown);
  report_progress("report: " + run->path("report.html"));
  const int code = holds(summary, f.fail_if) ? kFailIfHolds : summary.any_failed() ? kArmFailed : 0;
  print_text_now("");
  worker.done(code);
  return code;
}

void run_ab(Options options, const AbFlags& f, AbDeclared declared) {
  // What an arm answers must not depend on who else takes part, nor on where a run went on.
  options.deterministic = true;
  if (options.model.empty()) options.model = bundled_model();
  check_flags(options, f, declared);
  const std::string folder = !f.resume.empty()   ? f.resume
                             : !f.output.empty() ? f.output
                                                 : default_folder();
  if (f.resume.empty()) report_progress("run folder: " + folder);
  Worker worker = Worker::start(std::chrono::seconds(f.patience));
  const int code = work(worker, options, f, declared, folder);
  if (code != 0) throw ExitWith(code);
}

void resume(const Options& given, AbFlags flags) {
  if (!flags.output.empty())
    throw input_error("--resume writes to the folder of its run: leave out -o " + flags.output);
  const AbRun run = read_run(flags.resume);
  flags.resume = fs::absolute(flags.resume).string();
  CLI::App declared;
  Options options;
  add_declared_flags(declared, options, flags);
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
  add_declared_flags(*c, *options, *f);
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
