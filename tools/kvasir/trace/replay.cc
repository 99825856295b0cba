// kvasir trace replay: strategies over recorded attention, without the model.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/recall/recall_run.h"
#include "tools/kvasir/trace/choice_file.h"
#include "tools/kvasir/trace/trace_world.h"

namespace kvasir::tool {
namespace {

struct ReplayOptions {
  std::string file, choices;
  RecallFlags flags;
  bool force = false;
};

void check(const ReplayOptions& o, const TraceHeader& header) {
  if (o.flags.strategies.empty()) throw input_error("give at least one -s STRATEGY");
  if (uint64_t{o.flags.sink} + o.flags.window >= header.context)
    throw input_error("--sink and --window together must be below the prompt of " +
                      std::to_string(header.context) + " tokens");
  if (header.layers.size() < 2)
    throw input_error(o.file + ": has one layer, and the first one is dense: record two or more");
}

void replay(const Options& options, ReplayOptions o) {
  check_overwrite(o.choices, o.force);
  o.flags.keep_choices = !o.choices.empty();
  const Trace trace = read_trace(o.file);
  const TraceHeader& header = trace.header();
  check(o, header);
  RecallReport report = measure_recall(
      options, o.flags,
      {TraceWorld::shape_of(header, o.flags.sink, o.flags.window),
       [&](ThreadPool& pool) {
         return std::make_unique<TraceWorld>(trace, o.flags.sink, o.flags.window, pool);
       },
       "a replay of " + std::to_string(header.n_tokens()) + " tokens",
       "record fewer tokens, steps or --layers"});
  report.recorded = Recorded{o.file, header.model, header.layers};
  if (o.flags.keep_choices) write_choices(report, o.choices);
  print(report, options.json);
}

}  // namespace

void add_trace_replay(CLI::App& trace) {
  auto* c = trace.add_subcommand(
      "replay",
      std::string("Strategies over the attention of a trace, without its model.") + kRecallHelp);
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ReplayOptions>();
  c->add_option("FILE", o->file, "Trace, of `kvasir trace record`")->required();
  add_recall_flags(*c, *options, o->flags);
  c->add_option("-o,--choices", o->choices,
                "File for what each kv head attended to in every step, of each strategy at the "
                "settings of the table (safetensors)");
  c->add_flag("--force", o->force, "Replace the file of choices");
  c->callback([=] { replay(*options, *o); });
}

}  // namespace kvasir::tool
