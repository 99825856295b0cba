// kvasir config: checks strategies without a model, and explains one in full.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/config/check.h"
#include "tools/kvasir/config/explanation.h"

namespace kvasir::tool {
namespace {

struct ConfigOptions {
  std::vector<std::string> strategies;
  std::string preset_name;
};

// Checks all strategies before it fails, so that every mistake is reported and the exit code is 2.
void check(Options options, const ConfigOptions& o) {
  std::vector<std::string> names = o.strategies;
  if (!options.strategy.empty()) names.insert(names.begin(), options.strategy);
  if (names.empty()) throw input_error("config check: name a strategy file or preset");
  PluginHost host(options);
  std::vector<StrategyCheck> checks;
  std::vector<std::string> errors;
  for (const std::string& name : names) {
    options.strategy = name;
    const StrategyCheck& result = checks.emplace_back(check_strategy(host, options, o.preset_name));
    if (!result.error.empty()) errors.push_back(result.error);
    if (!result.note.empty())
      std::fprintf(stderr, "kvasir: note: %s: %s\n", name.c_str(), result.note.c_str());
  }
  print(checks, options.json);
  for (size_t i = 0; i + 1 < errors.size(); ++i)
    std::fprintf(stderr, "kvasir: error: %s\n", errors[i].c_str());
  if (!errors.empty()) throw input_error(errors.back());
}

void explain(Options options, const ConfigOptions& o) {
  if (o.strategies.size() + !options.strategy.empty() > 1)
    throw input_error("config explain: name one strategy");
  if (!o.strategies.empty()) options.strategy = o.strategies[0];
  PluginHost host(options);
  print(explain_strategy(host, options, o.preset_name), options.json);
}

void add_flags(CLI::App& c, Options& options, ConfigOptions& o) {
  c.add_option("strategies", o.strategies, "Strategy files, or names of presets");
  c.add_option("-m,--model", options.model, "Check against this model's shape too");
  c.add_option("--preset", o.preset_name, "Check against the shape of a known model");
  add_ctx_size(c, options.ctx_size, "Context in tokens, also 4K or 1M");
  add_strategy_flags(c, options);
}

}  // namespace

void add_config(CLI::App& app) {
  auto* config = app.add_subcommand("config", "Check, explain or import a strategy");
  config->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ConfigOptions>();
  auto* checked = config->add_subcommand(
      "check", "Check a strategy against schemas and plugins, without a model");
  add_flags(*checked, *options, *o);
  checked->callback([=] { check(*options, *o); });
  auto* explained =
      config->add_subcommand("explain", "Every value, where it came from, and the tokens attended");
  add_flags(*explained, *options, *o);
  explained->callback([=] { explain(*options, *o); });
  add_config_import(*config);
}

}  // namespace kvasir::tool
