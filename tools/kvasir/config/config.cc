// kvasir config: checks strategies without a model, and says what a strategy comes to.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/plugin/option_schema.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/config/ktransformers_import.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNominalPreset = "llama-3.1-8b";  // when no model says otherwise

struct ConfigOptions {
  std::vector<std::string> strategies;
  std::string preset_name;
};

bool has_model(const Options& options, const ConfigOptions& o) {
  return !options.model.empty() || !o.preset_name.empty();
}

// The context asked for, else the strategy's, else the model's own.
uint32_t context_of(const Options& options, const StrategyConfig& strategy,
                    const ModelShape& shape) {
  if (options.ctx_size) return options.ctx_size;
  const uint32_t configured = strategy.cache.max_seq_len.value;
  return configured ? configured : shape.max_context;
}

// Without a model: the shape of a common one, as deep as the layers the strategy names.
ModelShape nominal_shape(const StrategyConfig& strategy) {
  ModelShape shape = shape_for_planning("", kNominalPreset);
  const std::vector<uint32_t>& dense = strategy.cache.dense_layers.value;
  if (!dense.empty()) shape.n_layers = std::max(shape.n_layers, dense.back() + 1);
  return shape;
}

// Whether the strategy gives the plugin that failed a file: that may be made for one model.
bool is_given_file(PluginHost& host, const Pipeline& pipeline, const PluginError& error) {
  for (const Pipeline::Explained& section : pipeline.explained) {
    if (error.plugin() != section.id && !error.plugin().starts_with(section.id + " ")) continue;
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
std::string check_one(PluginHost& host, const Options& options, const ConfigOptions& o) {
  const StrategyConfig strategy = resolve_strategy(options);
  const Pipeline pipeline = build_pipeline(strategy, host.registry(), host.services());
  const bool given = has_model(options, o);
  const ModelShape shape =
      given ? shape_for_planning(options.model, o.preset_name) : nominal_shape(strategy);
  try {
    plan_strategy(host, strategy, shape, {Compute::kF32}, context_of(options, strategy, shape));
  } catch (const PluginError& e) {
    if (given || e.kind() != ErrorKind::kInput || !is_given_file(host, pipeline, e)) throw;
    return std::string("give -m or --preset to check this against your model: ") + e.what();
  }
  return "";
}

// All are checked; the mistakes come as one error, so that a script sees exit code 2.
void check(Options options, const ConfigOptions& o) {
  std::vector<std::string> names = o.strategies;
  if (!options.strategy.empty()) names.insert(names.begin(), options.strategy);
  if (names.empty()) throw input_error("config check: name a strategy file or preset");
  PluginHost host(options);
  Json results = Json::array();
  std::vector<std::string> errors;
  for (const std::string& name : names) {
    options.strategy = name;
    try {
      const std::string note = check_one(host, options, o);
      results.push_back({{"strategy", name},
                         {"ok", true},
                         {"error", nullptr},
                         {"note", note.empty() ? Json(nullptr) : Json(note)}});
      if (!note.empty()) std::fprintf(stderr, "kvasir: note: %s: %s\n", name.c_str(), note.c_str());
    } catch (const Error& e) {
      errors.emplace_back(e.what());
      results.push_back(
          {{"strategy", name}, {"ok", false}, {"error", e.what()}, {"note", nullptr}});
    }
  }
  if (options.json) {
    print_json({{"strategies", results}});
  } else {
    for (const Json& result : results)
      if (result["ok"]) std::printf("%s: ok\n", result["strategy"].get<std::string>().c_str());
  }
  for (size_t i = 0; i + 1 < errors.size(); ++i)
    std::fprintf(stderr, "kvasir: error: %s\n", errors[i].c_str());
  if (!errors.empty()) throw input_error(errors.back());
}

// `budget_tokens`, or the same in blocks, as every selector here names it.
bool is_budget(const kvasir_option_schema& schema) {
  const auto says = [](const char* key) {
    return std::string(key) == "budget_tokens" || std::string(key) == "budget_blocks";
  };
  bool found = says(schema.key);
  for (const char* const* alias = schema.aliases; alias && *alias; ++alias)
    found = found || says(*alias);
  return found;
}

// " = 12288 tokens" for an option counted in blocks; empty for others.
std::string in_tokens(PluginHost& host, const Pipeline::Explained& section,
                      const ResolvedOptions::Explained& option, uint32_t block_size) {
  const OpenPlugin plugin = host.registry().open(section.kind, section.id, section.file);
  for (const auto* known : checked_schema(*plugin.desc)) {
    if (option.key != known->key || !known->unit || std::string(known->unit) != "blocks") continue;
    char* end = nullptr;
    const uint64_t blocks = std::strtoull(option.value.c_str(), &end, 10);
    if (end == option.value.c_str() || *end != '\0') return "";
    return format("%llu blocks x %u = %llu tokens", static_cast<unsigned long long>(blocks),
                  block_size, static_cast<unsigned long long>(blocks * block_size));
  }
  return "";
}

// What the selector's budget comes to, on each of the keys that say something else.
std::string overruled(PluginHost& host, const Pipeline::Explained& section,
                      const ResolvedOptions::Explained& option, const MemoryPlan::Budget& budget,
                      uint32_t block_size) {
  const OpenPlugin plugin = host.registry().open(section.kind, section.id, section.file);
  for (const auto* known : checked_schema(*plugin.desc)) {
    if (option.key != known->key || !is_budget(*known) || !budget.limited) continue;
    const bool in_blocks = known->unit && std::string(known->unit) == "blocks";
    char* end = nullptr;
    const uint64_t n = std::strtoull(option.value.c_str(), &end, 10);
    if (end == option.value.c_str() || *end != '\0') return "";  // not set
    if (n * (in_blocks ? block_size : 1) == budget.tokens) return "";
    return format("with the other keys: at most %llu",
                  static_cast<unsigned long long>(budget.tokens));
  }
  return "";
}

// A value as TOML writes it; for numbers, truth values, strings and lists JSON agrees.
Json value_json(const std::string& toml) {
  if (toml == "not set") return nullptr;
  const Json value = Json::parse(toml, nullptr, false);
  return value.is_discarded() ? Json(toml) : value;
}

std::string value_text(const Json& value) {
  if (value.is_null()) return "not set";
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const Json& part : value) parts.push_back(part.dump());
  return "[" + join(parts, ", ") + "]";
}

// [cache] in full, then per section what the plugin gets.
Json settings_json(PluginHost& host, const StrategyConfig& strategy, const Pipeline& pipeline,
                   const MemoryPlan& plan) {
  Json out{{"cache", Json::array()}, {"plugins", Json::array()}};
  size_t n_selectors = 0;
  for (const ExplainLine& line : explain(strategy))
    if (line.key.starts_with("cache."))
      out["cache"].push_back(
          {{"key", line.key}, {"value", value_json(line.value)}, {"origin", line.origin}});
  for (const Pipeline::Explained& section : pipeline.explained) {
    Json options = Json::array();
    const uint32_t block_size = strategy.cache.block_size.value;
    const MemoryPlan::Budget budget =
        section.kind == Kind::kSelector ? plan.budgets[n_selectors++] : MemoryPlan::Budget{};
    for (const auto& option : section.options) {
      std::string note = option.note;
      for (const std::string& more : {in_tokens(host, section, option, block_size),
                                      overruled(host, section, option, budget, block_size)})
        if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
      options.push_back({{"key", option.key},
                         {"value", value_json(option.value)},
                         {"origin", option.origin},
                         {"note", note}});
    }
    const std::string table = table_name(section.kind);
    out["plugins"].push_back(
        {{"table", section.holds.empty() ? table : table + "." + section.holds},
         {"id", section.id},
         {"file", section.file},
         {"options", options}});
  }
  return out;
}

// Per selector what its native keys come to, and the plugin's own words on that.
Json budgets_json(const PluginHost& host, const MemoryPlan& plan) {
  Json out = Json::array();
  for (const MemoryPlan::Budget& budget : plan.budgets) {
    Json said = Json::array();
    for (const auto& [plugin, text] : host.said())
      if (plugin == budget.selector) said.push_back(text);
    out.push_back({{"selector", budget.selector},
                   {"budget_tokens", budget.limited ? Json(budget.tokens) : Json(nullptr)},
                   {"of_context", budget.of_context},
                   {"said", said}});
  }
  return out;
}

Json attended_json(const MemoryPlan& p, const std::string& model, uint32_t context,
                   uint32_t n_layers) {
  const double share = static_cast<double>(p.attended_tokens) / context;
  return {{"model", model},
          {"context", context},
          {"sink_tokens", p.sink_tokens},
          {"selected_tokens", p.selected_tokens},
          {"attends_all", p.attends_all},
          {"window_tokens", p.window_tokens},
          {"attended_tokens", p.attended_tokens},
          {"attended_share", share},
          {"layers", n_layers},
          {"dense_layers", p.n_dense_layers},
          {"mean_share", (share * (n_layers - p.n_dense_layers) + p.n_dense_layers) / n_layers},
          {"kv_bytes_per_step", p.kv_bytes_per_step}};
}

void print_text(const Json& report) {
  const auto n_selectors = std::count_if(
      report["plugins"].begin(), report["plugins"].end(),
      [](const Json& plugin) { return plugin["table"] == table_name(Kind::kSelector); });
  size_t selector = 0;  // of a chain
  std::printf("strategy %s\n\n", report["strategy"].get<std::string>().c_str());
  Table table({"key", "value", "from", ""});
  for (const Json& line : report["cache"])
    table.add({line["key"], value_text(line["value"]), line["origin"], ""});
  for (const Json& plugin : report["plugins"]) {
    std::string section = plugin["table"];
    if (n_selectors > 1 && section == table_name(Kind::kSelector))
      section += "." + std::to_string(selector++);
    table.add({section + ".plugin", plugin["id"], plugin["file"], ""});
    for (const Json& option : plugin["options"])
      table.add({section + "." + option["key"].get<std::string>(), value_text(option["value"]),
                 option["origin"], option["note"]});
  }
  std::fputs(table.text().c_str(), stdout);
  std::printf("\nbudget_tokens, the most per layer, kv head and step beyond sink and window:\n");
  for (const Json& budget : report["budgets"]) {
    const Json& tokens = budget["budget_tokens"];
    std::printf("  %s: %s%s\n", budget["selector"].get<std::string>().c_str(),
                tokens.is_null() ? "no limit" : tokens.dump().c_str(),
                budget["of_context"] ? " of a full context, mean over layers and kv heads" : "");
    for (const Json& text : budget["said"])
      std::printf("    %s\n", text.get<std::string>().c_str());
  }
  const Json& m = report["memory"];
  std::printf(
      "\nkept beside K and V: summaries %s, own state %s, at most %s while a prompt is read\n",
      bytes_text(m["representative_bytes"].get<uint64_t>()).c_str(),
      bytes_text(m["state_bytes"].get<uint64_t>()).c_str(),
      bytes_text(m["state_peak_bytes"].get<uint64_t>()).c_str());
  const Json& a = report["attended"];
  const auto n_dense = a["dense_layers"].get<uint32_t>(), n_layers = a["layers"].get<uint32_t>();
  const std::string dense =
      n_dense == 0 ? ""
                   : format(" in %u layers, all in %u dense ones: %.2f %% on average",
                            n_layers - n_dense, n_dense, 100.0 * a["mean_share"].get<double>());
  std::printf(
      "\nattended per layer, kv head and decoded token at %u tokens (%s): "
      "sink %llu + selected %s%llu + window %llu = %llu tokens (%.2f %%)%s\n",
      a["context"].get<uint32_t>(), a["model"].get<std::string>().c_str(),
      a["sink_tokens"].get<unsigned long long>(), a["attends_all"].get<bool>() ? "at most " : "",
      a["selected_tokens"].get<unsigned long long>(), a["window_tokens"].get<unsigned long long>(),
      a["attended_tokens"].get<unsigned long long>(), 100.0 * a["attended_share"].get<double>(),
      dense.c_str());
}

void explain_strategy(Options options, const ConfigOptions& o) {
  if (o.strategies.size() + !options.strategy.empty() > 1)
    throw input_error("config explain: name one strategy");
  if (!o.strategies.empty()) options.strategy = o.strategies[0];
  PluginHost host(options);
  const StrategyConfig strategy = resolve_strategy(options);
  const Pipeline pipeline = build_pipeline(strategy, host.registry(), host.services());
  const bool given = has_model(options, o);
  const ModelShape shape =
      given ? shape_for_planning(options.model, o.preset_name) : nominal_shape(strategy);
  const uint32_t context = context_of(options, strategy, shape);
  Json report{{"strategy", strategy.name}};
  const std::string model =
      options.model.empty()
          ? std::string("shape of ") + shape.name + (given ? "" : "; give -m or --preset for yours")
          : options.model;
  const MemoryPlan plan = plan_strategy(host, strategy, shape, {Compute::kF32}, context);
  report.update(settings_json(host, strategy, pipeline, plan));
  report["budgets"] = budgets_json(host, plan);
  report["memory"] = {{"representative_bytes", plan.record_bytes},
                      {"state_bytes", plan.state_bytes},
                      {"state_peak_bytes", plan.state_peak_bytes}};
  report["attended"] = attended_json(plan, model, context, shape.n_layers);
  if (options.json) return print_json(report);
  print_text(report);
}

// What type_k may be in the storage that imported strategies use.
std::vector<std::string> kv_types(PluginHost& host) {
  const OpenPlugin storage = host.registry().open(Kind::kStorage, "kvasir.dram");
  std::vector<std::string> names;
  for (const auto* known : checked_schema(*storage.desc))
    if (std::string(known->key) == "type_k")
      names.assign(known->enum_names, known->enum_names + known->n_enum);
  return names;
}

void import_config(const Options& options, const std::string& file, const std::string& output) {
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
  Output out(output);
  out.write(imported.toml);
  out.flush();
}

void add_flags(CLI::App& c, Options& options, ConfigOptions& o) {
  c.add_option("strategies", o.strategies, "Strategy files, or names of presets");
  c.add_option("-m,--model", options.model, "Check against this model's shape too");
  c.add_option("--preset", o.preset_name, "Against the shape of a known model");
  add_ctx_size(c, options.ctx_size, "Context in tokens, also 4K or 1M");
  add_strategy_flags(c, options);
}

}  // namespace

void add_config(CLI::App& app) {
  auto* config = app.add_subcommand("config", "Check a strategy, or see what it comes to");
  config->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ConfigOptions>();
  auto* checked = config->add_subcommand("check", "Against schemas and plugins, without a model");
  add_flags(*checked, *options, *o);
  checked->callback([=] { check(*options, *o); });
  auto* explained = config->add_subcommand("explain", "Every value, where it came from, the total");
  add_flags(*explained, *options, *o);
  explained->callback([=] { explain_strategy(*options, *o); });
  auto* imported = config->add_subcommand("import", "A strategy from KTransformers' config.yaml");
  auto file = std::make_shared<std::string>();
  auto output = std::make_shared<std::string>("-");
  imported->add_option("file", *file, "config.yaml, or its section long_context")->required();
  imported->add_option("-o,--output", *output, "File to write (default: standard output)");
  imported->add_option("--plugin-dir", options->plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  imported->add_option("--log-level", options->log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  imported->callback([=] { import_config(*options, *file, *output); });
}

}  // namespace kvasir::tool
