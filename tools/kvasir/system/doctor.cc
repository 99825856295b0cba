// kvasir doctor: what this machine has, and which of it will be used.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "tools/kvasir/commands.h"
#include "tools/kvasir/system/machine_report.h"

namespace kvasir::tool {

void add_doctor(CLI::App& app) {
  auto* c = app.add_subcommand("doctor", "What this machine has, and which of it will be used");
  auto options = std::make_shared<Options>();
  auto quick = std::make_shared<bool>(false);
  c->add_option("-t,--threads", options->threads, "Worker threads")->envname("KVASIR_ARG_THREADS");
  c->add_option("--plugin-dir", options->plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  c->add_flag("--quick", *quick, "Do not measure the memory bandwidth");
  add_json(*c, options->json);
  c->callback([=] { print(machine_report(*options, *quick), options->json); });
}

}  // namespace kvasir::tool
