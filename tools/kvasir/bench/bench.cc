// kvasir bench: measurements of strategies.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/commands.h"

#include <CLI/CLI.hpp>

namespace kvasir::tool {

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure strategies and the machine");
  bench->require_subcommand(1);
  add_bench_attention(*bench);
  add_bench_bandwidth(*bench);
  add_bench_blend(*bench);
  add_bench_model(*bench);
  add_bench_recall(*bench);
  add_bench_select(*bench);
  add_bench_storage(*bench);
  add_bench_weights(*bench);
}

}  // namespace kvasir::tool
