// kvasir ab show: a run again, from its folder.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/ab/commands.h"
#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/cli/options.h"

namespace kvasir::tool {

void add_ab_show(CLI::App& ab) {
  auto* c = ab.add_subcommand("show", "Print a run again, from its folder");
  struct Flags {
    std::string folder;
    bool json = false, markdown = false;
  };
  auto f = std::make_shared<Flags>();
  c->add_option("RUN", f->folder, "The folder")->required();
  c->add_flag("--markdown", f->markdown, "The report in Markdown");
  add_json(*c, f->json);
  c->callback([=] {
    refuse_before(*c);
    if (f->markdown && f->json) throw input_error("give one of --markdown and --json");
    const AbSummary summary = summarise(read_run(f->folder));
    if (f->markdown)
      print_text(to_markdown(summary));
    else
      print(summary, f->json);
  });
}

}  // namespace kvasir::tool
