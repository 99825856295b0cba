// kvasir trace replay: strategies over recorded attention, without the model.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/recall/recall_report.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/trace/trace_world.h"

namespace kvasir::tool {
namespace {

constexpr const char* kRemedy = "record fewer tokens, steps or --layers";

struct ReplayOptions {
  std::string file;
  std::vector<std::string> strategies;
  uint32_t budget = 512, block_size = 16, sink = 16, window = 64;
  bool by_layer = false;
};

void check(const ReplayOptions& o, const TraceHeader& header) {
  if (o.strategies.empty()) throw input_error("give at least one -s STRATEGY");
  if (o.budget == 0 || o.block_size == 0)
    throw input_error("--budget and --block-size must be above 0");
  if (uint64_t{o.sink} + o.window >= header.context)
    throw input_error("--sink and --window together must be below the prompt of " +
                      std::to_string(header.context) + " tokens");
  if (header.layers.size() < 2)
    throw input_error(o.file + ": has one layer, and the first one is dense: record two or more");
}

void replay(const Options& options, const ReplayOptions& o) {
  const Trace trace = read_trace(o.file);
  const TraceHeader& header = trace.header();
  check(o, header);
  PluginHost host(options);
  const RecallSettings settings{o.block_size, o.sink, o.window, o.budget, header.context};
  std::vector<RecallArm> arms;
  for (const std::string& name : o.strategies) arms.emplace_back(options, name, settings, host);
  check_memory(TraceWorld::shape_of(header, o.sink, o.window).bytes() + kProcessBytes,
               "a replay of " + std::to_string(header.n_tokens()) + " tokens", "", kRemedy);
  const TraceWorld world(trace, o.sink, o.window, host.pool());
  const RecallBench bench(world, o.budget, options.seed, host, kRemedy);
  RecallReport report;
  report.shape = world.shape();
  report.recorded = Recorded{o.file, header.model, header.layers};
  report.settings = settings;
  report.target = bench.target();
  report.seed = options.seed;
  report.by_layer = o.by_layer;
  measure_arms(bench, arms, report);
  print(report, options.json);
}

}  // namespace

void add_trace_replay(CLI::App& trace) {
  auto* c = trace.add_subcommand(
      "replay",
      "Strategies over the attention of a trace, without its model. All attend to the same number "
      "of tokens; the table says how much of the true attention mass each one captures. The "
      "command searches the settings that give this number. -s NAME/token chooses tokens instead "
      "of blocks, NAME/shared makes one choice for all heads");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ReplayOptions>();
  add_arm_flags(*c, *options, o->strategies);
  c->add_option("FILE", o->file, "Trace, of `kvasir trace record`")->required();
  c->add_option("-b,--budget", o->budget, "Tokens selected beside sink and window")
      ->capture_default_str();
  c->add_option("--block-size", o->block_size, "Tokens per block")->capture_default_str();
  c->add_option("--sink", o->sink, "First tokens, always attended")->capture_default_str();
  c->add_option("--window", o->window, "Last tokens, always attended")->capture_default_str();
  c->add_option("--seed", options->seed, "Seed of plugins that draw random numbers");
  c->add_option("-t,--threads", options->threads, "Worker threads");
  c->add_flag("--by-layer", o->by_layer, "The captured mass of each layer, too");
  add_json(*c, options->json);
  c->callback([=] { replay(*options, *o); });
}

}  // namespace kvasir::tool
