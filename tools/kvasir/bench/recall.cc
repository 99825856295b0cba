// kvasir bench recall: strategies where the truth is known, at the same number of attended tokens.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <sstream>

#include "core/error.h"
#include "tools/kvasir/bench/recall_bench.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/run_report.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

struct RecallOptions {
  std::vector<std::string> strategies;
  RecallShape shape;
  uint32_t budget = 512, block_size = 16;
};

// Presets: the bounds at every unit and scope, then the methods.
constexpr const char* kStrategies =
    "dense oracle random oracle/shared oracle/token random/token oracle/token/shared quest "
    "block_topk ktransformers infllm snapkv h2o tova pyramidkv infinigen magicpig twilight "
    "duoattention streaming";

const char* name_of(RecallScope scope) {
  if (scope == RecallScope::kSequence) return "sequence";
  return scope == RecallScope::kKvHead ? "kv head" : "query head";
}

Json to_json(const RecallResult& r) {
  Json settings = Json::object();
  for (const auto& [key, value] : r.settings) {
    if (value == std::floor(value))
      settings[key] = static_cast<uint64_t>(value);
    else
      settings[key] = value;
  }
  return {{"strategy", r.label},
          {"unit", r.choice.unit_tokens == 1 ? "token" : "block"},
          {"scope", name_of(r.choice.scope)},
          {"settings", settings},
          {"tolerance_tokens", r.tolerance},
          {"at_target", r.at_target},
          {"note", r.note.empty() ? Json(nullptr) : Json(r.note)},
          {"runs", r.n_runs},
          {"tokens_attended", r.figures.attended},
          {"captured_mass", r.figures.captured},
          {"best_mass", r.figures.best},
          {"random_mass", r.figures.random},
          {"random_deviation", r.figures.random_deviation},
          {"needle_recall", r.figures.needles},
          {"top_k_recall", r.figures.top_k},
          {"output_error", r.figures.error},
          {"kv_bytes", r.kv_bytes},
          {"fallbacks", r.fallbacks}};
}

void check(const RecallOptions& o) {
  const RecallShape& s = o.shape;
  if (s.n_kv_heads == 0 || s.n_q_heads == 0 || s.n_q_heads % s.n_kv_heads != 0)
    throw input_error("--kv-heads must divide --heads");
  if (s.head_dim == 0 || s.head_dim % 2 != 0) throw input_error("--head-dim must be even");
  if (uint64_t{s.sink} + s.window + s.needles >= s.context || s.context > 1u << 20)
    throw input_error("-c must be above --sink, --window and --needles together, at most 1M");
  if (!(s.needle_mass > 0.0 && s.needle_mass < 1.0))
    throw input_error("--needle-mass must be between 0 and 1");
  if (s.steps == 0 || s.needles == 0 || o.budget == 0 || o.block_size == 0)
    throw input_error("--budget, --steps, --needles and --block-size must be above 0");
  if (s.n_layers < 2) throw input_error("--layers must be above 1: the first is dense");
}

void print_text(const Json& report) {
  const auto number = [&](const char* key) { return report[key].get<uint32_t>(); };
  std::printf(
      "%u tokens, %u needles with %.0f %% of the attention mass, %u queries decoded; "
      "%u layers, %u query heads on %u, head_dim %u\n\n",
      number("context"), number("needles"), 100.0 * report["needle_mass"].get<double>(),
      number("steps"), number("layers"), number("q_heads"), number("kv_heads"), number("head_dim"));
  Table table({"strategy", "unit", "scope", "attended", "captured mass", "best", "random",
               "needle recall", "top-k recall", "output error", "K+V held", "fallbacks"},
              {3, 4, 5, 6, 7, 8, 9, 10, 11});
  std::string notes;
  uint32_t n_notes = 0;
  for (const Json& r : report["strategies"]) {
    const auto percent = [&](const char* key) {
      return format("%.1f %%", 100.0 * r[key].get<double>());
    };
    std::string name = r["strategy"];
    if (!r["note"].is_null()) {
      const std::string mark = format("[%u]", ++n_notes);
      notes += mark + " " + name + ": " + r["note"].get<std::string>() + "\n";
      name += " " + mark;
    }
    table.add({name, r["unit"], r["scope"], format("%.0f", r["tokens_attended"].get<double>()),
               percent("captured_mass"), percent("best_mass"),
               format("%.1f +- %.1f %%", 100.0 * r["random_mass"].get<double>(),
                      100.0 * r["random_deviation"].get<double>()),
               percent("needle_recall"), percent("top_k_recall"),
               format("%.4f", r["output_error"].get<double>()),
               bytes_text(r["kv_bytes"].get<uint64_t>()), r["fallbacks"].dump()});
  }
  std::fputs(table.text().c_str(), stdout);
  std::printf(
      "\nattended: tokens per kv head and step. Wanted: %.0f (sink %u + window %u + budget %u), "
      "to\n"
      "within 2 %%, or a block of %u where blocks are chosen. Where budget_tokens = %u gives\n"
      "another number, settings that give this one were searched. best, random: captured mass of\n"
      "an exact and of a random choice (+- a draw's standard deviation) of as many tokens, of the\n"
      "same unit and scope, beside the same sink and window. Sets of query heads are attended, "
      "and\n"
      "count, as their union per kv head.\n",
      report["tokens_target"].get<double>(), number("sink_tokens"), number("window_tokens"),
      number("budget_tokens"), number("block_size"), number("budget_tokens"));
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
}

void bench_recall(const Options& options, RecallOptions o) {
  check(o);
  if (o.strategies.empty()) {
    std::istringstream presets(kStrategies);
    for (std::string name; presets >> name;) o.strategies.push_back(name);
  }
  PluginHost host(options);
  host.log_once();
  const RecallSettings settings{o.block_size, o.shape.sink, o.shape.window, o.budget,
                                o.shape.context};
  std::vector<RecallArm> arms;
  for (const std::string& name : o.strategies) arms.emplace_back(options, name, settings, host);
  const RecallShape& s = o.shape;
  const RecallBench bench(s, o.budget, options.seed, host);
  Json report{
      {"context", s.context},      {"budget_tokens", o.budget},  {"tokens_target", bench.target()},
      {"steps", s.steps},          {"needles", s.needles},       {"needle_mass", s.needle_mass},
      {"layers", s.n_layers},      {"q_heads", s.n_q_heads},     {"kv_heads", s.n_kv_heads},
      {"head_dim", s.head_dim},    {"block_size", o.block_size}, {"sink_tokens", s.sink},
      {"window_tokens", s.window}, {"seed", options.seed},       {"strategies", Json::array()}};
  ProgressBar bar("recall", !options.json);
  uint64_t n_done = 0;  // runs; at least one more for each strategy that is left
  for (size_t i = 0; i < arms.size(); ++i) {
    const size_t n_left = arms.size() - i - 1;
    const RecallResult result = bench.measure(arms[i], [&] {
      ++n_done;
      bar.update(n_done, n_done + n_left + 1);  // the one at hand may need another
    });
    bar.update(n_done, n_done + n_left);
    report["strategies"].push_back(to_json(result));
  }
  if (options.json) return print_json(report);
  print_text(report);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure strategies and the machine");
  bench->require_subcommand(1);
  auto* c = bench->add_subcommand(
      "recall",
      "Needles of known attention mass, no model: what each strategy captures when all attend to "
      "as many tokens. Settings that lead there are searched by running. -s NAME/token chooses "
      "tokens instead of blocks, NAME/shared once for all heads");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<RecallOptions>();
  RecallShape& s = o->shape;
  add_arm_flags(*c, *options, o->strategies);
  add_ctx_size(*c, s.context, "Tokens of the prompt, also 4K");
  c->add_option("-b,--budget", o->budget, "Tokens selected beside sink and window");
  c->add_option("-n,--steps", s.steps, "Queries decoded");
  c->add_option("--block-size", o->block_size, "Tokens per block");
  c->add_option("--sink", s.sink, "First tokens, always attended");
  c->add_option("--window", s.window, "Last tokens, always attended");
  c->add_option("--layers", s.n_layers, "Layers; the first is dense");
  c->add_option("--heads", s.n_q_heads, "Query heads");
  c->add_option("--kv-heads", s.n_kv_heads, "kv heads");
  c->add_option("--head-dim", s.head_dim, "Elements of a key");
  c->add_option("--needles", s.needles, "Tokens that carry the mass");
  c->add_option("--needle-mass", s.needle_mass, "Their share of the attention");
  c->add_option("--drift", s.drift, "How far queries stray from one another");
  c->add_option("--seed", options->seed, "Of the data and of plugins that draw");
  c->add_option("-t,--threads", options->threads, "Worker threads");
  c->add_flag("--json", options->json, "One JSON document on stdout, nothing else there");
  c->callback([=] { bench_recall(*options, *o); });
}

}  // namespace kvasir::tool
