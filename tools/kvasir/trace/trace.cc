// kvasir trace: what a model computed, recorded, replayed and analysed.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/commands.h"

namespace kvasir::tool {

void add_trace(CLI::App& app) {
  auto* trace = app.add_subcommand(
      "trace", "Recorded attention: strategies can be developed over it without the model");
  trace->require_subcommand(1);
  add_trace_record(*trace);
  add_trace_replay(*trace);
  add_trace_analyze(*trace);
}

}  // namespace kvasir::tool
