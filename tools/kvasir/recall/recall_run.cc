// See recall_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_run.h"

#include <CLI/CLI.hpp>

#include <set>

#include "core/error.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

// With a bar of progress.
void measure_arms(const RecallBench& bench, const std::vector<RecallArm>& arms,
                  RecallReport& report) {
  ProgressBar bar("recall");
  uint64_t n_done = 0;  // runs; each strategy that is left needs at least one more
  for (size_t i = 0; i < arms.size(); ++i) {
    const size_t n_left = arms.size() - i - 1;
    report.strategies.push_back(bench.measure(arms[i], [&] {
      ++n_done;
      bar.update(n_done, n_done + n_left + 1);  // this strategy may need another run
    }));
    bar.update(n_done, n_done + n_left);
  }
}

// Choices are kept by label.
void check_labels(const std::vector<RecallArm>& arms) {
  std::set<std::string> known;
  for (const RecallArm& arm : arms)
    if (!known.insert(arm.label()).second)
      throw input_error("two strategies are called \"" + arm.label() +
                        "\": give one of them a file of another name");
}

}  // namespace

void add_recall_flags(CLI::App& app, Options& options, RecallFlags& flags) {
  add_arm_flags(app, options, flags.strategies);
  app.add_option("-b,--budget", flags.budget, "Tokens selected beside sink and window")
      ->capture_default_str();
  app.add_option("--block-size", flags.block_size, "Tokens per block")->capture_default_str();
  app.add_option("--sink", flags.sink, "First tokens, always attended")->capture_default_str();
  app.add_option("--window", flags.window, "Last tokens, always attended")->capture_default_str();
  app.add_option("--seed", options.seed, "Of made-up data, and of plugins that draw");
  app.add_option("-t,--threads", options.threads, "Worker threads");
  app.add_flag("--by-layer", flags.by_layer, "The captured mass of each layer, too");
  add_json(app, options.json);
}

RecallReport measure_recall(const Options& options, const RecallFlags& flags,
                            const RecallSource& source) {
  if (flags.budget == 0 || flags.block_size == 0)
    throw input_error("--budget and --block-size must be above 0");
  PluginHost host(options);
  RecallReport report;
  report.shape = source.shape;
  report.settings = {flags.block_size, flags.sink, flags.window, flags.budget,
                     source.shape.context};
  report.seed = options.seed;
  report.by_layer = flags.by_layer;
  std::vector<RecallArm> arms;
  for (const std::string& name : flags.strategies)
    arms.emplace_back(options, name, report.settings, host);
  if (flags.keep_choices) check_labels(arms);
  check_memory(source.shape.bytes() + kProcessBytes, source.what, "", source.remedy);
  const auto world = source.make(host.pool());
  RecallBench bench(*world, flags.budget, options.seed, host, source.remedy);
  if (flags.keep_choices) bench.keep_choices();
  report.target = bench.target();
  measure_arms(bench, arms, report);
  return report;
}

}  // namespace kvasir::tool
