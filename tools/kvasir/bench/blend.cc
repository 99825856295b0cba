// kvasir bench blend: deviations of reused chunks, and what computing some again leaves of them.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/bench/blend_bench.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {

void add_bench_blend(CLI::App& bench) {
  auto* c = bench.add_subcommand("blend", "Deviations of reused chunks, and what blending leaves");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<BlendBenchOptions>();
  auto arms =
      std::make_shared<std::string>("reuse,0.05,0.1,0.15,0.25,0.5,0.75,1,random:0.15,oracle:0.15");
  options->seed = 1;
  add_model_flags(*c, *options);
  add_strategy_flags(*c, *options);
  c->add_option("-f,--file", f->file, "Text to make chunks of (made-up prose)");
  c->add_option("--n-chunks", f->n_chunks, "Chunks (8)")->check(CLI::Range(2, 64));
  c->add_option("--chunk-tokens", f->chunk_tokens, "Tokens of each (256)")
      ->check(CLI::Range(1, 16384));
  c->add_option("--question-tokens", f->question_tokens,
                "Tokens behind them, whose predictions are compared (32)")
      ->check(CLI::Range(1, 1024));
  c->add_option("--blend", *arms, std::string("Arms beside full: ") + kBlendArmHelp);
  c->add_option("--loads", f->n_loads,
                "Prompts for which chunks are loaded a layer ahead, and as many with layers loaded "
                "when they are needed, from the store and from the process (0: none)")
      ->check(CLI::Range(0, 1000));
  c->callback([=] {
    const BlendConfig base = resolve_strategy(*options).blend;
    f->arms = parse_blend_arms("full," + *arms, base, "--blend");
    f->seed = options->seed;
    f->loading = base;
    f->loading.mode = BlendMode::kRatio;
    const uint32_t needed = f->n_chunks * f->chunk_tokens + f->question_tokens + 1;
    if (options->ctx_size && options->ctx_size < needed)
      throw input_error("-c " + std::to_string(options->ctx_size) + ": the chunks need " +
                        std::to_string(needed) + " tokens with BOS and question");
    Session session(*options);
    print(bench_blend(session, *f), options->json);
  });
}

}  // namespace kvasir::tool
