// See check.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/config/check.h"

#include "core/error.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/config/target.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

// Whether the plugin that failed reads a file that the strategy names: the file may be made for
// another model.
bool is_given_file(PluginHost& host, const Pipeline& pipeline, const PluginError& error) {
  for (const Pipeline::Explained& section : pipeline.explained) {
    if (error.plugin() != section.id) continue;
    const OpenPlugin plugin = host.registry().open(section.kind, section.id, section.file);
    for (const auto* known : checked_schema(*plugin.desc))
      for (const auto& option : section.options)
        if (known->type == KVASIR_OPTION_PATH && option.key == known->key &&
            option.origin != "default")
          return true;
  }
  return false;
}

// Returns what could not be judged without the model, or "".
std::string note_of(PluginHost& host, const Options& options, const std::string& preset_name) {
  const StrategyConfig strategy = resolve_strategy(options);
  const Pipeline pipeline = build_pipeline(strategy, host.registry(), host.services());
  const Target target = target_of(options, preset_name, strategy);
  try {
    plan_target(host, strategy, target);
  } catch (const PluginError& e) {
    if (target.is_given || e.kind() != ErrorKind::kInput || !is_given_file(host, pipeline, e))
      throw;
    return std::string("give -m or --preset to check this against your model: ") + e.what();
  }
  return "";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

StrategyCheck check_strategy(PluginHost& host, const Options& options,
                             const std::string& preset_name) {
  StrategyCheck out;
  out.strategy = options.strategy;
  try {
    out.note = note_of(host, options, preset_name);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

Json to_json(const std::vector<StrategyCheck>& checks) {
  Json list = Json::array();
  for (const StrategyCheck& check : checks)
    list.push_back({{"strategy", check.strategy},
                    {"ok", check.error.empty()},
                    {"error", text_or_null(check.error)},
                    {"note", text_or_null(check.note)}});
  return {{"strategies", list}};
}

std::string to_text(const std::vector<StrategyCheck>& checks) {
  std::string out;
  for (const StrategyCheck& check : checks)
    if (check.error.empty()) out += check.strategy + ": ok\n";
  return out;
}

}  // namespace kvasir::tool
