// kvasir compare: the same tokens through several strategies, each judged against dense attention.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <optional>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/compare/comparison.h"

namespace kvasir::tool {
namespace {

struct CompareOptions {
  std::vector<std::string> strategies;
  std::optional<std::string> prompt, file;
  uint32_t n_predict = 64;
  std::string feed = "greedy";
  double most_attended = kMostAttendedPercent;
  bool no_mask = false;
};

void compare(Options options, const CompareOptions& o) {
  if (o.prompt.has_value() == o.file.has_value())
    throw input_error("give one of -p TEXT and -f FILE");
  if (o.strategies.empty()) throw input_error("give at least one -s STRATEGY");
  if (o.n_predict == 0) throw input_error("-n must be above 0");
  const std::string text = o.file ? read_file(*o.file, "-f") : *o.prompt;
  const std::vector<Arm> arms = resolve_arms(options, o.strategies);
  Session session(options);
  std::vector<TokenId> prompt = session.tokenizer().encode(text, {});
  if (prompt.empty()) throw input_error("the prompt is empty");
  std::vector<TokenId> fed;
  if (o.feed == "text") {
    if (prompt.size() <= o.n_predict)
      throw input_error("--feed text takes the last " + std::to_string(o.n_predict) + " of the " +
                        std::to_string(prompt.size()) +
                        " tokens, and a prompt must be left: lower -n or give more text");
    fed.assign(prompt.end() - o.n_predict, prompt.end());
    prompt.resize(prompt.size() - o.n_predict);
  }
  const uint64_t context = prompt.size() + o.n_predict;
  if (options.ctx_size && context > options.ctx_size)
    throw input_error("prompt and -n are " + std::to_string(context) + " tokens, but -c gives " +
                      std::to_string(options.ctx_size) + ": raise -c or shorten the prompt");
  Comparison comparison = compare_strategies(session, arms, prompt, o.n_predict, fed, !o.no_mask);
  comparison.most_attended = o.most_attended;
  print(comparison, options.json);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto* c = app.add_subcommand("compare", "The same tokens through several strategies");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<CompareOptions>();
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, o->strategies);
  c->add_option("-p,--prompt", o->prompt, "Prompt text");
  c->add_option("-f,--file", o->file, "Prompt from a file");
  c->add_option("-n,--n-predict", o->n_predict, "Decode steps to compare");
  c->add_option("--feed", o->feed,
                "What is decoded: greedy: tokens that dense attention generates behind the prompt; "
                "text: the last -n tokens of the text, whose prompt is what comes before them")
      ->check(CLI::IsMember({"greedy", "text"}))
      ->capture_default_str();
  add_most_attended(*c, o->most_attended);
  add_no_mask(*c, o->no_mask);
  add_json(*c, options->json);
  c->callback([=] { compare(*options, *o); });
}

}  // namespace kvasir::tool
