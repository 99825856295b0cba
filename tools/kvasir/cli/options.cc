// See options.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/options.h"

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdlib>

#include "tools/kvasir/cli/llama_cpp_flags.h"
#include "tools/kvasir/cli/parse.h"

namespace kvasir::tool {

void add_strategy_flags(CLI::App& app, Options& o) {
  app.add_option("-s,--strategy", o.strategy, "Strategy file (TOML), or the name of a preset")
      ->envname("KVASIR_ARG_STRATEGY");
  app.add_option("--set", o.set, "Override a key: --set cache.window_tokens=64")
      ->allow_extra_args(false);
  app.add_option("--plugin-dir", o.plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  add_check_plugins(app, o.check_plugins);
  app.add_option(
      "--ctk,--cache-type-k", o.cache_type_k,
      "Type of stored K: f32, f16, bf16, q8_0, q4_0, fp8_e4m3 (KVASIR_SET_STORAGE_TYPE_K in the "
      "environment)");
  app.add_option("--ctv,--cache-type-v", o.cache_type_v, "Type of stored V: the same types");
  app.add_option("--log-level", o.log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  add_json(app, o.json);
}

void add_ctx_size(CLI::App& app, uint32_t& tokens, const std::string& help) {
  app.add_option("-c,--ctx-size", tokens, help)
      ->transform([](const std::string& text) { return std::to_string(parse_count(text, "-c")); })
      ->envname("KVASIR_ARG_CTX_SIZE");
}

void add_model_flags(CLI::App& app, Options& o) {
  app.add_option("-m,--model", o.model, "Model file (GGUF)")->envname("KVASIR_ARG_MODEL");
  add_ctx_size(app, o.ctx_size,
               "Context in tokens, also 4K or 1M (default: what the prompt needs)");
  app.add_option("-t,--threads", o.threads, "Worker threads (default: one per physical core)")
      ->envname("KVASIR_ARG_THREADS");
  add_numa(app, o.numa);
  app.add_option("--compute", o.compute,
                 "Dense layers in int8 (quantised weights as they lie, activations rounded to 8 "
                 "bits), bf16 or f32. Default: int8 for quantised weights, bf16 for others when "
                 "the CPU has it, else f32. In bf16 the chunk size may change greedy text, see "
                 "--deterministic")
      ->check(CLI::IsMember({"auto", "int8", "bf16", "f32"}))
      ->envname("KVASIR_ARG_COMPUTE");
  add_deterministic(app, o);
  add_gpu_layers(app, o.gpu_layers);
  app.add_option("--seed", o.seed, "Seed of sampling and of plugins that draw random numbers")
      ->envname("KVASIR_ARG_SEED");
  add_not_yet_flags(app);
}

void add_numa(CLI::App& app, NodeUse& use) {
  app.add_option_function<std::string>(
         "--numa",
         [&use](const std::string& how) { use = how == "isolate" ? NodeUse::kOne : NodeUse::kAll; },
         "Cores of which NUMA nodes: of all that the process may use, weights and cache spread "
         "over them (distribute, the default; numactl says the same where numactl limits the "
         "process), or of the node that it starts on (isolate)")
      ->check(CLI::IsMember({"distribute", "isolate", "numactl"}))
      ->envname("KVASIR_ARG_NUMA");
}

void add_deterministic(CLI::App& app, Options& o) {
  app.add_flag("--deterministic", o.deterministic,
               "bf16: the same text for every chunk size and number of sequences (may be slower)")
      ->envname("KVASIR_ARG_DETERMINISTIC");
}

void add_gpu_layers(CLI::App& app, uint32_t& n) {
  app.add_option("--ngl,--gpu-layers,--n-gpu-layers", n,
                 "Layers on the GPU: the last N of the model; more than it has, or all: its head, "
                 "too. Default 0")
      ->transform(
          [](const std::string& text) { return text == "all" ? std::to_string(UINT32_MAX) : text; })
      ->envname("KVASIR_ARG_GPU_LAYERS");
}

void add_sampler_flags(CLI::App& app, PromptOptions& o) {
  app.add_option("-n,--n-predict,--predict", o.n_predict, "Tokens to generate")
      ->envname("KVASIR_ARG_N_PREDICT");
  app.add_option("--temp", o.sampler.temperature, "Temperature, 0 = greedy")
      ->check(CLI::Range(0.0, 1e6))
      ->envname("KVASIR_ARG_TEMP");
  app.add_option("--top-k", o.sampler.top_k, "0 = off")->envname("KVASIR_ARG_TOP_K");
  app.add_option("--top-p", o.sampler.top_p, "1 = off")
      ->check(CLI::Range(0.0, 1.0))
      ->envname("KVASIR_ARG_TOP_P");
  app.add_option("--min-p", o.sampler.min_p, "0 = off")
      ->check(CLI::Range(0.0, 1.0))
      ->envname("KVASIR_ARG_MIN_P");
  app.add_option("--repeat-penalty", o.sampler.repeat_penalty, "1 = off");
  app.add_option("--repeat-last-n", o.sampler.repeat_last_n, "Tokens the penalty looks back");
  app.add_flag("--ignore-eos", o.ignore_eos, "Continue after an end-of-text token");
}

void add_check_plugins(CLI::App& app, bool& check) {
  app.add_flag("--check-plugins", check,
               "Validate: plugins work on guarded copies, what they leave behind is compared, a "
               "fault ends the run. Slow");
}

void add_most_attended(CLI::App& app, double& percent) {
  app.add_option("--most-attended", percent,
                 "Percent of the tokens: a strategy that attended to more is said not to have "
                 "engaged (90)")
      ->check(CLI::Range(0.0, 100.0));
}

void add_no_mask(CLI::App& app, bool& no_mask) {
  app.add_flag("--no-mask", no_mask,
               "Without each strategy masked, with nothing chosen: less time and memory, no proof "
               "that its choice matters here");
}

void add_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "One JSON document on stdout, nothing else there");
}

void refuse_odd_numbers(CLI::App& app) {
  const CLI::Validator no_sign(
      [](std::string& text) {
        return text.starts_with('-') ? text + " is negative" : std::string();
      },
      "");
  const CLI::Validator finite(
      [](std::string& text) {
        return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is no number";
      },
      "");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("UINT")) option->check(no_sign);
    if (option->get_type_name().starts_with("FLOAT")) option->check(finite);
  }
  for (CLI::App* below : app.get_subcommands({})) refuse_odd_numbers(*below);
}

}  // namespace kvasir::tool
