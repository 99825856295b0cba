// kvasir trace analyze: what recorded attention looks like.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/trace/analysis.h"

namespace kvasir::tool {
namespace {

void analyze(const Options& options, const std::string& file) {
  const Trace trace = read_trace(file);
  const TraceHeader& header = trace.header();
  check_memory(TraceWorld::shape_of(header, 0, 0).bytes(),
               "an analysis of " + std::to_string(header.n_tokens()) + " tokens", "",
               "record fewer tokens or --layers");
  PluginHost host(options);
  print(analyse(trace, file, host.pool()), options.json);
}

}  // namespace

void add_trace_analyze(CLI::App& trace) {
  auto* c = trace.add_subcommand(
      "analyze",
      "Where the attention of a trace lies, layer by layer and by length: sinks, concentration, "
      "tokens that come back, outlier channels of keys, how well the layer before foretells");
  auto options = std::make_shared<Options>();
  auto file = std::make_shared<std::string>();
  c->add_option("FILE", *file, "Trace, of `kvasir trace record`")->required();
  c->add_option("-t,--threads", options->threads, "Worker threads");
  add_json(*c, options->json);
  c->callback([=] { analyze(*options, *file); });
}

}  // namespace kvasir::tool
