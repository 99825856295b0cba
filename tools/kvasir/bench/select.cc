// kvasir bench select: where the time of a decode step goes, strategy by strategy, as prompts grow.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.h"
#include "tools/kvasir/bench/select_report.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

constexpr const char* kDenseBelow = "cache.dense_below_tokens";

struct SelectOptions {
  std::vector<std::string> strategies;
  std::string file, depths = "1K,4K,8K";
  uint32_t n_steps = 32;
};

std::vector<uint32_t> ascending_depths(const std::string& list) {
  std::vector<uint32_t> depths = parse_counts(list, "-d");
  std::sort(depths.begin(), depths.end());
  const auto twice = std::adjacent_find(depths.begin(), depths.end());
  if (twice != depths.end())
    throw input_error("-d " + list + ": " + std::to_string(*twice) + " stands there twice");
  return depths;
}

// Below it a strategy is dense, and would be measured against itself.
void measure_without_dense_below(Options& options) {
  for (const std::string& set : options.set)
    if (set.starts_with(std::string(kDenseBelow) + "="))
      throw input_error("--set " + set + ": bench select measures with " + kDenseBelow +
                        " = 0 and proposes a value: leave it out");
  options.set.push_back(std::string(kDenseBelow) + "=0");
}

// The text's first tokens, as many as the largest depth.
std::vector<TokenId> prompt_tokens(const Session& session, const std::string& file,
                                   uint32_t n_tokens) {
  std::vector<TokenId> tokens = session.tokenizer().encode(read_file(file, "-f"), {});
  if (tokens.size() < n_tokens)
    throw input_error("-f " + file + " has " + std::to_string(tokens.size()) +
                      " tokens, but -d asks for " + std::to_string(n_tokens) +
                      ": give a longer text or smaller depths");
  tokens.resize(n_tokens);
  return tokens;
}

void bench_select(Options options, const SelectOptions& o) {
  if (o.strategies.empty()) throw input_error("give at least one -s STRATEGY");
  if (o.file.empty()) throw input_error("give a text with -f FILE");
  if (o.n_steps == 0) throw input_error("-n must be above 0");
  SelectReport report;
  report.n_steps = o.n_steps;
  report.depths = ascending_depths(o.depths);
  const uint32_t deepest = report.depths.back();
  const uint64_t context = uint64_t{deepest} + o.n_steps;
  if (options.ctx_size && context > options.ctx_size)
    throw input_error("-d and -n are " + std::to_string(context) + " tokens, but -c gives " +
                      std::to_string(options.ctx_size) + ": raise -c or lower -d");
  measure_without_dense_below(options);
  const std::vector<Arm> arms = resolve_arms(options, o.strategies);
  Session session(options);
  const std::vector<TokenId> tokens = prompt_tokens(session, o.file, deepest);
  SelectBench bench(session, arms, deepest, o.n_steps);
  const size_t n_rows = report.depths.size() * (arms.size() + 1);
  for (const uint32_t depth : report.depths) {
    for (SelectRow& row : bench.measure(std::span(tokens).first(depth))) {
      report.rows.push_back(std::move(row));
      report_progress(to_line(report.rows.back()) +
                      format("  (%zu of %zu)", report.rows.size(), n_rows));
    }
  }
  report.setup = session.setup();
  report.load_ms = session.load_ms();
  report.limits = bench.limits();
  print(report, options.json);
}

}  // namespace

void add_bench_select(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "select",
      "Where the time of a decode step goes under each strategy, beside what bytes and arithmetic "
      "need at the least, as the prompt grows; and from which length on a strategy pays");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<SelectOptions>();
  c->footer(kSelectColumns);
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, o->strategies);
  c->add_option("-f,--file", o->file, "Text whose first tokens are the prompts");
  c->add_option("-d,--depths", o->depths, "Tokens of the prompts (1K,4K,8K)");
  c->add_option("-n,--n-predict", o->n_steps, "Decode steps behind each prompt (32)");
  add_json(*c, options->json);
  c->callback([=] { bench_select(*options, *o); });
}

}  // namespace kvasir::tool
