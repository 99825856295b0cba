// kvasir plan: bytes per part and tier, tokens attended and bytes read per token, before anything
// loads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/platform/memory.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

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

Json plan_json(const MemoryPlan& p, uint32_t context, double bandwidth) {
  const uint64_t read = p.weight_bytes + p.kv_bytes_per_step + p.record_bytes_per_step;
  Json out{{"context", context},
           {"kv_bytes", p.kv_bytes},
           {"kv_slow_bytes", p.kv_slow_bytes},
           {"kv_overhead_bytes", p.kv_overhead_bytes},
           {"representative_bytes", p.record_bytes},
           {"state_bytes", p.state_bytes},
           {"state_peak_bytes", p.state_peak_bytes},
           {"weight_bytes", p.weight_bytes},
           {"model_scratch_bytes", p.model_scratch_bytes},
           {"activation_bytes", p.activation_bytes},
           {"attention_scratch_bytes", p.attention_scratch_bytes},
           {"process_bytes", p.process_bytes},
           {"total_bytes", p.total()},
           {"tiers", Json::array({{{"tier", "dram"}, {"bytes", p.total()}},
                                  {{"tier", "storage"}, {"bytes", p.kv_slow_bytes}}})},
           {"sink_tokens", p.sink_tokens},
           {"window_tokens", p.window_tokens},
           {"selected_tokens", p.selected_tokens},
           {"attended_tokens", p.attended_tokens},
           {"attends_all", p.attends_all},
           {"kv_bytes_per_step", p.kv_bytes_per_step},
           {"representative_bytes_per_step", p.record_bytes_per_step},
           {"weight_bytes_per_step", p.weight_bytes}};
  if (bandwidth > 0) {
    out["bound_ms_per_token"] = static_cast<double>(read) * 1e3 / bandwidth;
    out["bound_tokens_per_second"] = bandwidth / static_cast<double>(read);
  }
  return out;
}

void print_text(const Json& report) {
  std::printf("%s, %s, strategy %s, %u sequence(s); GB = 1e9 bytes\n\n",
              report["model"].get<std::string>().c_str(),
              report["compute"].get<std::string>().c_str(),
              report["strategy"].get<std::string>().c_str(), report["n_sequences"].get<uint32_t>());
  const bool bound = report.contains("bandwidth_bytes_per_second");
  const bool tiers = std::any_of(report["plans"].begin(), report["plans"].end(),
                                 [](const Json& p) { return p["kv_slow_bytes"] != 0; });
  const bool state = std::any_of(report["plans"].begin(), report["plans"].end(),
                                 [](const Json& p) { return p["state_peak_bytes"] != 0; });
  std::vector<std::string> header = {"context",    "K+V GB",        "summaries GB",
                                     "weights GB", "other GB",      "total GB",
                                     "attended",   "read/token MB", "of it weights MB"};
  if (state) header.insert(header.begin() + 3, {"own state GB", "at most GB"});
  if (tiers) header.insert(header.begin() + 2, "not in memory GB");
  if (bound) header.insert(header.end(), {"at least ms/token", "at most tokens/s"});
  Table table(header, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
  for (const Json& p : report["plans"]) {
    const auto bytes = [&](const char* key) { return p[key].get<uint64_t>(); };
    const uint64_t other = bytes("kv_overhead_bytes") + bytes("model_scratch_bytes") +
                           bytes("activation_bytes") + bytes("attention_scratch_bytes") +
                           bytes("process_bytes");
    const uint64_t read = bytes("kv_bytes_per_step") + bytes("representative_bytes_per_step") +
                          bytes("weight_bytes_per_step");
    std::vector<std::string> row = {
        p["context"].dump(),
        gigabytes(bytes("kv_bytes")),
        gigabytes(bytes("representative_bytes")),
        gigabytes(bytes("weight_bytes")),
        gigabytes(other),
        gigabytes(bytes("total_bytes")),
        p["attended_tokens"].dump(),
        format("%.1f", static_cast<double>(read) / 1e6),
        format("%.1f", static_cast<double>(bytes("weight_bytes")) / 1e6)};
    if (state)
      row.insert(row.begin() + 3,
                 {gigabytes(bytes("state_bytes")), gigabytes(bytes("state_peak_bytes"))});
    if (tiers) row.insert(row.begin() + 2, gigabytes(bytes("kv_slow_bytes")));
    if (bound) {
      row.push_back(format("%.2f", p["bound_ms_per_token"].get<double>()));
      row.push_back(format("%.2f", p["bound_tokens_per_second"].get<double>()));
    }
    table.add(row);
  }
  std::fputs(table.text().c_str(), stdout);
  std::printf("\nattended: per layer, kv head and decoded token at the full context\n");
  if (state)
    std::printf(
        "own state: memory that plugins keep beside summaries; at most: while a prompt is "
        "read, which the total counts\n");
  if (tiers) std::printf("not in memory: that part of K and V; the total is without it\n");
  if (bound)
    std::printf("bound: bytes read / %.1f GB/s\n",
                report["bandwidth_bytes_per_second"].get<double>() / 1e9);
  std::printf("this machine has %s available\n",
              bytes_text(report["available_bytes"].get<uint64_t>()).c_str());
}

void plan(const Options& options, const PlanOptions& o) {
  PluginHost host(options);
  const StrategyConfig strategy = resolve_strategy(options);
  build_pipeline(strategy, host.registry(), host.services());
  const ModelShape shape = shape_for_planning(options.model, o.preset_name);
  Model::Options model;
  model.compute = resolve_compute(options);
  model.deterministic = options.deterministic;
  if (o.n_sequences == 0) throw input_error("--sequences must be above 0");
  const std::vector<uint32_t> contexts = o.contexts.empty()
                                             ? std::vector<uint32_t>{shape.max_context}
                                             : parse_counts(o.contexts, "-c");
  const double bandwidth = bandwidth_of(o.bandwidth, host);
  Json report{{"model", options.model.empty() ? o.preset_name : options.model},
              {"strategy", strategy.name},
              {"compute", model.compute == Compute::kBF16 ? "bf16" : "f32"},
              {"n_sequences", o.n_sequences},
              {"available_bytes", memory_info().available_bytes}};
  if (bandwidth > 0) report["bandwidth_bytes_per_second"] = bandwidth;
  for (const uint32_t context : contexts)
    report["plans"].push_back(plan_json(
        plan_strategy(host, strategy, shape, model, context, o.n_sequences), context, bandwidth));
  if (options.json) return print_json(report);
  print_text(report);
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
  c->add_option("--compute", options->compute, "Dense layers in f32 or bf16")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->envname("KVASIR_ARG_COMPUTE");
  add_deterministic(*c, *options);
  add_strategy_flags(*c, *options);
  c->callback([=] { plan(*options, *o); });
}

}  // namespace kvasir::tool
