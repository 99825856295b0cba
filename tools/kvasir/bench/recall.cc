// kvasir bench recall: strategies where the truth is known, at the same number of attended tokens.
// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "core/error.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/recall/recall_bench.h"
#include "tools/kvasir/recall/recall_report.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

// What makes it fit where memory is short.
constexpr const char* kRemedy = "lower -c, --steps, --layers or --heads";

struct RecallOptions {
  std::vector<std::string> strategies;
  RecallShape shape;
  Planted planted;
  uint32_t budget = 512, block_size = 16;
  bool by_layer = false;
};

// Presets: the bounds at every unit and scope, then the methods.
constexpr const char* kStrategies =
    "dense oracle random oracle/shared oracle/token random/token oracle/token/shared quest "
    "block_topk ktransformers infllm snapkv h2o tova pyramidkv infinigen magicpig twilight "
    "duoattention streaming";

void check(const RecallOptions& o) {
  const RecallShape& s = o.shape;
  if (s.n_kv_heads == 0 || s.n_q_heads == 0 || s.n_q_heads % s.n_kv_heads != 0)
    throw input_error("--kv-heads must divide --heads");
  if (s.head_dim == 0 || s.head_dim % 2 != 0) throw input_error("--head-dim must be even");
  if (uint64_t{s.sink} + s.window + o.planted.needles >= s.context || s.context > 1u << 20)
    throw input_error("-c must be above --sink, --window and --needles together, at most 1M");
  if (!(o.planted.needle_mass > 0.0 && o.planted.needle_mass < 1.0))
    throw input_error("--needle-mass must be between 0 and 1");
  if (!(o.planted.rehearsal >= 0.0 && o.planted.rehearsal <= 1.0))
    throw input_error("--rehearsal must be from 0 to 1");
  if (s.steps == 0 || o.planted.needles == 0 || o.budget == 0 || o.block_size == 0)
    throw input_error("--budget, --steps, --needles and --block-size must be above 0");
  if (s.n_layers < 2) throw input_error("--layers must be above 1: the first is dense");
}

RecallReport measure(const Options& options, const RecallOptions& o) {
  PluginHost host(options);
  const RecallSettings settings{o.block_size, o.shape.sink, o.shape.window, o.budget,
                                o.shape.context};
  std::vector<RecallArm> arms;
  for (const std::string& name : o.strategies) arms.emplace_back(options, name, settings, host);
  check_memory(o.shape.bytes() + kProcessBytes,
               "a context of " + std::to_string(o.shape.context) + " made-up tokens", "", kRemedy);
  const MadeUpWorld world(o.shape, o.planted, options.seed);
  const RecallBench bench(world, o.budget, options.seed, host, kRemedy);
  RecallReport report;
  report.shape = o.shape;
  report.planted = o.planted;
  report.settings = settings;
  report.target = bench.target();
  report.seed = options.seed;
  report.by_layer = o.by_layer;
  measure_arms(bench, arms, report);
  return report;
}

void bench_recall(const Options& options, RecallOptions o) {
  check(o);
  if (o.strategies.empty()) {
    std::istringstream presets(kStrategies);
    for (std::string name; presets >> name;) o.strategies.push_back(name);
  }
  print(measure(options, o), options.json);
}

}  // namespace

void add_bench_recall(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "recall",
      "Made-up queries and keys whose true attention is known, no model. All strategies attend to "
      "the same number of tokens; the table says how much attention mass each one captures. The "
      "command searches the settings that give this number. -s NAME/token chooses tokens instead "
      "of blocks, NAME/shared makes one choice for all heads");
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
  c->add_option("--needles", o->planted.needles, "Tokens that together have --needle-mass");
  c->add_option("--needle-mass", o->planted.needle_mass,
                "Share of the attention mass that the needles have");
  c->add_option("--drift", o->planted.drift,
                "How much queries of one head differ, 0 for equal ones: the cosine of two is "
                "1 / (1 + drift^2)")
      ->capture_default_str();
  c->add_option("--rehearsal", o->planted.rehearsal,
                "Cosine of a query and the one that a selector rehearses in the layer before; 1 "
                "for the query itself")
      ->capture_default_str();
  c->add_option("--seed", options->seed,
                "Seed of the data and of plugins that draw random numbers");
  c->add_option("-t,--threads", options->threads, "Worker threads");
  c->add_flag("--by-layer", o->by_layer, "The captured mass of each layer, too");
  add_json(*c, options->json);
  c->callback([=] { bench_recall(*options, *o); });
}

}  // namespace kvasir::tool
