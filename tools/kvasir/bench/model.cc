// kvasir bench model: tokens per second by length of prompt, tokens generated and depth.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/model/synthetic/random_model.h"
#include "tools/kvasir/bench/model_bench.h"
#include "tools/kvasir/bench/preset_model.h"
#include "tools/kvasir/cli/output_format.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/model/file_info.h"

namespace kvasir::tool {
namespace {

struct ModelOptions {
  std::vector<std::string> strategies;
  std::string preset, type = "bf16";
  std::string n_prompt = "512", n_generate = "128", depths = "0";
  std::string types_k, types_v;
  uint32_t n_repetitions = 5;
  bool breakdown = false;
  OutputFormat format = OutputFormat::kMarkdown;
};

std::vector<ModelTest> tests_of(const ModelOptions& o) {
  std::vector<ModelTest> out;
  for (const uint32_t depth : parse_counts(o.depths, "-d", 0)) {
    for (const uint32_t n : parse_counts(o.n_prompt, "-p", 0))
      if (n) out.push_back({n, 0, depth});
    for (const uint32_t n : parse_counts(o.n_generate, "-n", 0))
      if (n) out.push_back({0, n, depth});
  }
  if (out.empty()) throw input_error("-p 0 -n 0: there is nothing to measure");
  return out;
}

// Each strategy with each pair of types. `options` is changed as resolve_arms() says.
std::vector<ModelArm> arms_of(Options& options, const ModelOptions& o) {
  std::vector<ModelArm> out;
  Options last = options;
  for (const std::string& k : split(o.types_k, ','))
    for (const std::string& v : split(o.types_v, ',')) {
      last = options;
      last.cache_type_k = k;
      last.cache_type_v = v;
      const std::vector<std::string> names =
          o.strategies.empty() ? std::vector<std::string>{"dense"} : o.strategies;
      for (Arm& arm : resolve_arms(last, names))
        out.push_back({arm.label, "", "", std::move(arm.strategy)});
    }
  options = last;
  return out;
}

void bench_model(Options options, const ModelOptions& o) {
  if (o.n_repetitions == 0) throw input_error("-r must be above 0");
  if (options.model.empty() == o.preset.empty())
    throw input_error(options.model.empty() ? "no model: give -m FILE.gguf or --preset NAME"
                                            : "-m and --preset: give one of them");
  ModelReport report;
  std::vector<ModelTest> tests = tests_of(o);
  std::vector<ModelArm> arms = arms_of(options, o);
  std::optional<PresetModel> made;
  if (!o.preset.empty()) options.model = made.emplace(o.preset, o.type).path();
  Session session(options);
  for (ModelArm& arm : arms) {
    const Pipeline pipeline = session.pipeline(arm.config);
    arm.type_k = stored_type(pipeline, "type_k");
    arm.type_v = stored_type(pipeline, "type_v");
  }
  const ModelInfo info = model_info(session.file(), {});
  ModelBench bench(session, std::move(arms), std::move(tests), options.seed);
  report.rows = bench.measure(o.n_repetitions);
  report.setup = session.setup();
  if (made) report.setup.model = o.preset;
  report.model_name = info.name;
  report.file_bytes = info.file_bytes;
  report.n_parameters = info.n_parameters;
  report.load_ms = session.load_ms();
  report.n_repetitions = o.n_repetitions;
  report.seed = options.seed;
  report.breakdown = o.breakdown;
  report.limits = bench.limits();
  print(report, o.format);
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "model",
      "Tokens per second of a model under strategies, reading a prompt and decoding, at any depth; "
      "what is read per token, and the share of the machine's bandwidth that this is");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<ModelOptions>();
  c->footer(kModelColumns);
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, o->strategies);
  c->get_option("--strategy")->description("Strategy file or preset; once per strategy (dense)");
  c->add_option("--preset", o->preset,
                "Instead of -m: random weights in the shape of " + join(preset_names(), ", "));
  c->add_option("--type", o->type,
                "Type or mix of the weights of --preset, as of `model random` (bf16)");
  c->add_option("-p,--n-prompt", o->n_prompt, "Tokens of prompts, 0 for none (512)")->join(',');
  c->add_option("-n,--n-gen", o->n_generate, "Tokens decoded, 0 for none (128)")->join(',');
  c->add_option("-d,--n-depth", o->depths,
                "Tokens cached before, also 4K or 1M: 0,4096,32768 (0). They are made up")
      ->join(',');
  c->add_option("-r,--repetitions", o->n_repetitions, "Repetitions of each test (5)");
  c->add_option("--ctk,--cache-type-k", o->types_k,
                "Types of stored K, separated by commas: f32, f16, bf16, q8_0, q4_0, fp8_e4m3")
      ->join(',');
  c->add_option("--ctv,--cache-type-v", o->types_v,
                "Types of stored V; each type of K is measured with each type of V")
      ->join(',');
  c->add_flag("--breakdown", o->breakdown,
              "Also ms per token in projections, selection, attention, FFN and logits");
  add_output_format(*c, o->format);
  c->callback([=] { bench_model(*options, *o); });
}

}  // namespace kvasir::tool
