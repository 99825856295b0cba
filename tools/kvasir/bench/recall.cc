// kvasir bench recall: strategies where the truth is known, at the same number of attended tokens.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <sstream>

#include "core/error.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/recall/made_up_world.h"
#include "tools/kvasir/recall/recall_run.h"

namespace kvasir::tool {
namespace {

struct RecallOptions {
  RecallFlags flags;
  RecallShape shape;  // but for sink and window
  Planted planted;
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
  if (uint64_t{o.flags.sink} + o.flags.window + o.planted.needles >= s.context ||
      s.context > 1u << 20)
    throw input_error("-c must be above --sink, --window and --needles together, at most 1M");
  if (!(o.planted.needle_mass > 0.0 && o.planted.needle_mass < 1.0))
    throw input_error("--needle-mass must be between 0 and 1");
  if (!(o.planted.rehearsal >= 0.0 && o.planted.rehearsal <= 1.0))
    throw input_error("--rehearsal must be from 0 to 1");
  if (s.steps == 0 || o.planted.needles == 0)
    throw input_error("--steps and --needles must be above 0");
  if (s.n_layers < 2) throw input_error("--layers must be above 1: the first is dense");
}

void bench_recall(const Options& options, RecallOptions o) {
  check(o);
  if (o.flags.strategies.empty()) {
    std::istringstream presets(kStrategies);
    for (std::string name; presets >> name;) o.flags.strategies.push_back(name);
  }
  o.shape.sink = o.flags.sink;
  o.shape.window = o.flags.window;
  RecallReport report = measure_recall(
      options, o.flags,
      {o.shape,
       [&](ThreadPool&) { return std::make_unique<MadeUpWorld>(o.shape, o.planted, options.seed); },
       "a context of " + std::to_string(o.shape.context) + " made-up tokens",
       "lower -c, --steps, --layers or --heads"});
  report.planted = o.planted;
  print(report, options.json);
}

}  // namespace

void add_bench_recall(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "recall", std::string("Made-up queries and keys whose true attention is known, no model.") +
                    kRecallHelp);
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<RecallOptions>();
  RecallShape& s = o->shape;
  add_recall_flags(*c, *options, o->flags);
  add_ctx_size(*c, s.context, "Tokens of the prompt, also 4K");
  c->add_option("-n,--steps", s.steps, "Queries decoded");
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
  c->callback([=] { bench_recall(*options, *o); });
}

}  // namespace kvasir::tool
