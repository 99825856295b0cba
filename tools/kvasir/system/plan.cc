// kvasir plan: bytes per part and tier, tokens attended and bytes read per token, before anything
// loads.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "core/platform/memory.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/kvasir/system/plan_report.h"

namespace kvasir::tool {
namespace {

struct PlanOptions {
  std::string preset_name, contexts, bandwidth;
  uint32_t n_sequences = 1;
};

// "12.5" in GB/s, or "measure"; 0 when not asked for. In bytes per second.
double bandwidth_of(const std::string& text, PluginHost& host) {
  if (text.empty()) return 0.0;
  if (text == "measure") return measure_read_bandwidth(host.pool());
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value > 0.0))
    throw input_error("--bandwidth " + text + ": expected GB/s above 0, or \"measure\"");
  return value * 1e9;
}

void plan(const Options& options, const PlanOptions& o) {
  PluginHost host(options);
  const StrategyConfig strategy = resolve_strategy(options);
  build_pipeline(strategy, host.registry(), host.services());
  const ModelShape shape = shape_for_planning(options.model, o.preset_name);
  Model::Options model;
  model.compute = wanted_compute(options);
  model.deterministic = options.deterministic;
  model.device_layers = options.gpu_layers;
  std::optional<GgufFile> file;
  if (!options.model.empty()) file = GgufFile::open(options.model);
  if (o.n_sequences == 0) throw input_error("--sequences must be above 0");
  const std::vector<uint32_t> contexts = o.contexts.empty()
                                             ? std::vector<uint32_t>{shape.max_context}
                                             : parse_counts(o.contexts, "-c");
  PlanReport report;
  report.bandwidth = bandwidth_of(o.bandwidth, host);
  report.model = options.model.empty() ? o.preset_name : options.model;
  report.strategy = strategy.name;
  report.compute = file                              ? Model::arithmetic(*file, model).compute
                   : model.compute == Compute::kInt8 ? plain_compute()
                                                     : model.compute;
  report.n_sequences = o.n_sequences;
  report.available_bytes = memory_info().available_bytes;
  for (const uint32_t context : contexts)
    report.plans.push_back({context, plan_strategy(host, strategy, shape, model, context,
                                                   o.n_sequences, file ? &*file : nullptr)});
  print(report, options.json);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* c = app.add_subcommand("plan", "Memory and bytes read per token, before anything loads");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<PlanOptions>();
  c->add_option("-m,--model", options->model, "Model file (GGUF)")->envname("KVASIR_ARG_MODEL");
  c->add_option("--preset", o->preset_name, "Shape of a known model instead of a file");
  c->add_option("-c,--ctx-size", o->contexts, "Contexts in tokens: 4096 or 4K,32K,1M")
      ->envname("KVASIR_ARG_CTX_SIZE");
  c->add_option("--sequences", o->n_sequences, "Sequences at the same time");
  c->add_option("--bandwidth", o->bandwidth, "GB/s to predict the speed from, or \"measure\"");
  c->add_option("--compute", options->compute, "Dense layers in int8, bf16 or f32, see run --help")
      ->check(CLI::IsMember({"auto", "int8", "bf16", "f32"}))
      ->envname("KVASIR_ARG_COMPUTE");
  add_deterministic(*c, *options);
  add_gpu_layers(*c, options->gpu_layers);
  add_strategy_flags(*c, *options);
  c->callback([=] { plan(*options, *o); });
}

}  // namespace kvasir::tool
