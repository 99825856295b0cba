// kvasir task blend: tasks whose context is made of chunks, the chunks reused in several ways.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/kvasir/task/blend_eval.h"
#include "tools/kvasir/task/flags.h"

namespace kvasir::tool {
namespace {

const char* const kBlendRule =
    "Each chunk is read alone, once; then every arm answers the same samples over the same chunks: "
    "full computes all of them anew and is the control, prefix reuses the first, reuse all with "
    "their keys turned to their new positions, a share computes the tokens again that deviate most "
    "(CacheBlend), random and oracle as many others. A sample is right when greedy decoding gives "
    "exactly the tokens of its answer.";

struct BlendFlags {
  TaskFlags task;
  std::string length = "2048";
  std::string arms =
      "prefix,reuse,reuse_uncorrected,0.05,0.1,0.15,0.25,0.5,random:0.15,oracle:0.15,auto";
  uint32_t n = 20;
};

void blend_tasks(const Options& options, const BlendFlags& flags) {
  if (flags.n == 0) throw input_error("-n must be above 0");
  if (options.seed >= kFirstTrainingSeed)
    throw input_error("--seed " + std::to_string(options.seed) +
                      ": seeds from 4294967296 on are for training: give a smaller one");
  BlendEvalOptions wanted;
  wanted.tasks = parse_tasks(flags.task.tasks, "--task");
  for (const Task task : wanted.tasks)
    if (task != Task::kChunkChain && task != Task::kChunkBorder)
      throw input_error(std::string("--task ") + name(task) +
                        " has no chunks: give chunk_border, chunk_chain");
  wanted.lengths = parse_counts(flags.length, "--length");
  wanted.task = task_options(flags.task);
  wanted.seed = options.seed;
  wanted.n_samples = flags.n;
  const uint32_t longest = *std::max_element(wanted.lengths.begin(), wanted.lengths.end());
  if (options.ctx_size && options.ctx_size < longest)
    throw input_error("-c " + std::to_string(options.ctx_size) + ": --length " +
                      std::to_string(longest) + " needs as many tokens");
  const BlendConfig base = resolve_strategy(options).blend;
  std::vector<BlendArm> arms = parse_blend_arms("full," + flags.arms, base, "--blend");
  if (flags.arms == "full") arms.resize(1);
  Session session(options);
  print(evaluate_blends(session, arms, wanted), options.json);
}

}  // namespace

void add_task_blend(CLI::App& task) {
  auto* c = task.add_subcommand("blend", "Accuracy and time when chunks of the context are reused");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<BlendFlags>();
  options->seed = 1;
  f->task.tasks = "chunk_border,chunk_chain";
  c->footer(kBlendRule);
  add_model_flags(*c, *options);
  add_strategy_flags(*c, *options);
  c->add_option("--task", f->task.tasks, "chunk_border, chunk_chain (both)");
  c->add_option("--length", f->length, "Tokens of prompt and answers: 2048, or 2K,4K (2048)");
  c->add_option("-n", f->n, "Samples of each task and length (20)");
  c->add_option("--blend", f->arms,
                std::string("Arms beside full, separated by commas: ") + kBlendArmHelp);
  add_task_flags(*c, f->task);
  c->callback([=] { blend_tasks(*options, *f); });
}

}  // namespace kvasir::tool
