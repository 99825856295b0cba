// See meta.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/meta.h"

#include <kvasir_commit.h>
#include <xxhash.h>

#include <ctime>
#include <filesystem>
#include <set>

#include "abi/kvasir/version.h"
#include "core/error.h"
#include "tools/kvasir/ab/layer_run.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/model_identity.h"
#include "tools/kvasir/session/shared_prompt.h"
#include "tools/kvasir/system/machine_report.h"

namespace kvasir::tool {
namespace {

std::string hex(uint64_t number) {
  return format("%016llx", static_cast<unsigned long long>(number));
}

// "": it cannot be read.
std::string file_hash(const std::string& path) {
  try {
    const std::string bytes = read_file(path, "plugin");
    return hex(XXH3_64bits(bytes.data(), bytes.size()));
  } catch (const Error&) {
    return "";
  }
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Json strategy_json(const Entrant& entrant, const StrategyConfig& strategy) {
  Json configuration = Json::object();
  for (const ExplainLine& line : explain(strategy)) configuration[line.key] = line.value;
  Json ladder;
  if (entrant.ladder)
    ladder = {{"budget_tokens", entrant.ladder->budget_tokens},
              {"by_token", entrant.ladder->by_token},
              {"shared", entrant.ladder->shared}};
  return {{"label", entrant.label},   {"role", name(entrant.role)},
          {"ladder", ladder},         {"oracle", entrant.oracle},
          {"random", entrant.random}, {"masked", entrant.masked},
          {"base", entrant.base},     {"is_masked", entrant.is_masked},
          {"value", entrant.value},   {"configuration", configuration}};
}

Json declared_json(const AbParts& parts, const AbDeclared& d) {
  Json out{{"primary_metric", "samples answered exactly, paired with dense attention"},
           {"margin", d.margin},
           {"most_attended_percent", d.most_attended},
           {"stop_when", d.options.stop_when_decided ? "decided" : "all samples are answered"},
           {"samples", d.options.n_samples},
           {"seed", d.options.seed},
           {"layer_samples", d.options.n_layer_samples},
           {"no_layers_because", why_no_layers(parts.session.shape())},
           {"questions", d.options.n_questions},
           {"question_in_prompt", d.options.question_in_prompt},
           {"sweep", d.sweep_key},
           {"model_hash", hex(model_hash(parts.session.file()))}};
  out["tasks"] = task_names(d.options);
  out["sample_files"] = Json::array();
  for (const std::string& file : d.options.sample_files)
    out["sample_files"].push_back({{"file", file}, {"xxh3", file_hash(file)}});
  out["lengths"] = d.options.lengths;
  const TaskOptions& t = d.options.task;
  const auto range = [](const Range& r) { return Json::array({r.first, r.last}); };
  out["task_options"] = {{"key_tokens", range(t.key_tokens)},
                         {"value_tokens", range(t.value_tokens)},
                         {"pairs", range(t.pairs)},
                         {"queries", range(t.queries)},
                         {"hops", range(t.hops)},
                         {"chains", t.chains},
                         {"depths", t.depths}};
  out["compute"] = name(parts.session.setup().compute);
  if (const std::string there = parts.session.placement().text(); !there.empty())
    out["on_device"] = there;
  out["strategies"] = Json::array();
  for (const Entrant& entrant : parts.lineup)
    out["strategies"].push_back(
        strategy_json(entrant, entrant.strategy ? *entrant.strategy : parts.session.strategy()));
  return out;
}

// Files that several strategies use stand there once.
Json plugins_json(const AbParts& parts) {
  Json out = Json::array();
  std::set<std::pair<std::string, std::string>> known;
  for (size_t i = 0; i < parts.lineup.size(); ++i) {
    if (!parts.lineup[i].failed.empty()) continue;
    for (const PluginUsed& plugin : run_report(parts.engine, {}, parts.ids[0][i]).plugins)
      if (known.emplace(plugin.id, plugin.file).second)
        out.push_back({{"id", plugin.id},
                       {"version", plugin.version},
                       {"file", plugin.file},
                       {"xxh3", file_hash(plugin.file)}});
  }
  return out;
}

Json groups_json(const AbParts& parts) {
  std::vector<std::string> labels;  // by id
  for (const Entrant& entrant : parts.lineup)
    if (entrant.failed.empty()) labels.push_back(entrant.label);
  Json out = Json::array();
  for (const auto& group : prompt_groups(parts.engine, static_cast<uint32_t>(labels.size()))) {
    Json members = Json::array();
    for (const StrategyId id : group) members.push_back(labels[id]);
    out.push_back(members);
  }
  return out;
}

// Of a sequence of each length: K, V, records and the memory of plugins, as planned.
Json sequence_bytes_json(const AbParts& parts, const AbOptions& options) {
  Json out = Json::object();
  for (size_t i = 0; i < parts.lineup.size(); ++i) {
    if (!parts.lineup[i].failed.empty()) continue;
    for (const uint32_t length : options.lengths)
      out[parts.lineup[i].label][std::to_string(length)] =
          parts.engine.sequence_bytes(parts.ids[0][i], length).total();
  }
  return out;
}

}  // namespace

Json make_meta(const AbParts& parts, const Options& options, const AbDeclared& declared) {
  return {{"format", 3},
          {"declared", declared_json(parts, declared)},
          {"begun", utc_now()},
          {"folder", std::filesystem::current_path().string()},
          {"words", declared.words},
          {"version", KVASIR_VERSION},
          {"commit", KVASIR_COMMIT},
          {"program_xxh3", file_hash("/proc/self/exe")},
          {"abi", format("%d.%d", KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR)},
          {"setup", to_json(parts.session.setup())},
          {"plugins", plugins_json(parts)},
          {"prompt_groups", groups_json(parts)},
          {"sequence_bytes", sequence_bytes_json(parts, declared.options)},
          {"machine", to_json(machine_report(options, !declared.measure_bandwidth))}};
}

}  // namespace kvasir::tool
