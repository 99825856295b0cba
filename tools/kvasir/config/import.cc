// kvasir config import: a strategy from KTransformers' config.yaml.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/config/ktransformers_import.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {
namespace {

// What type_k may be in the storage that imported strategies use.
std::vector<std::string> kv_types(PluginHost& host) {
  const OpenPlugin storage = host.registry().open(Kind::kStorage, "kvasir.dram");
  std::vector<std::string> names;
  for (const auto* known : checked_schema(*storage.desc))
    if (std::string(known->key) == "type_k")
      names.assign(known->enum_names, known->enum_names + known->n_enum);
  return names;
}

void import_config(const Options& options, const std::string& file, const std::string& output,
                   bool force) {
  check_overwrite(output, force);
  PluginHost host(options);
  const ImportedStrategy imported =
      import_ktransformers(read_file(file, "config import"), file, kv_types(host));
  try {
    const StrategyConfig strategy = parse_strategy(imported.toml, file + " as TOML", {}, {});
    build_pipeline(strategy, host.registry(), host.services());
  } catch (const Error& e) {
    throw Error(e.kind(),
                file + " does not make a valid strategy, nothing is written: " + e.what());
  }
  for (const std::string& note : imported.notes)
    std::fprintf(stderr, "kvasir: note: %s\n", note.c_str());
  Output out(output, Output::As::kWhole);
  out.write(imported.toml);
  out.finish();
}

}  // namespace

void add_config_import(CLI::App& config) {
  auto* imported = config.add_subcommand("import", "A strategy from KTransformers' config.yaml");
  auto options = std::make_shared<Options>();
  auto file = std::make_shared<std::string>();
  auto output = std::make_shared<std::string>("-");
  imported->add_option("file", *file, "config.yaml, or its section long_context")->required();
  imported->add_option("-o,--output", *output, "File to write (default: standard output)");
  imported->add_option("--plugin-dir", options->plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  imported->add_option("--log-level", options->log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  auto force = std::make_shared<bool>(false);
  imported->add_flag("--force", *force, "Overwrite the file");
  imported->callback([=] { import_config(*options, *file, *output, *force); });
}

}  // namespace kvasir::tool
