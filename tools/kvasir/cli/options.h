// What the user typed: flags shared by several subcommands, spelled as llama.cpp's users know them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/strategy.h"
#include "core/model/layers/model.h"
#include "core/plugin/registry.h"
#include "core/serving/sampler.h"

namespace kvasir::tool {

struct Options {
  std::string model;
  std::string strategy;          // file, or the name of a shipped preset
  std::vector<std::string> set;  // key=value
  std::vector<std::string> plugin_dirs;
  uint32_t ctx_size = 0;         // 0: what the prompt needs
  uint32_t threads = 0;          // 0: one per physical core
  std::string compute = "auto";  // auto, f32, bf16
  uint64_t seed = 0;
  std::string cache_type_k, cache_type_v;
  std::string log_level = "warn";
  bool json = false;
  bool check_numerics = false;
  bool deterministic = false;
};

struct PromptOptions {
  std::optional<std::string> prompt;  // -p "" is a prompt: the BOS token alone
  std::string file;
  uint32_t n_predict = 128;
  SamplerOptions sampler;
  std::string chat_template;
  std::string cache_file;       // --prompt-cache
  bool cache_readonly = false;  // --prompt-cache-ro
  bool ignore_eos = false;
};

// -m -s --set --plugin-dir -c -t --compute --seed -ctk -ctv --log-level --json, and the flags of
// llama.cpp that mean nothing here yet: each prints one "not yet" line on stderr.
void add_strategy_flags(CLI::App& app, Options& options);
void add_ctx_size(CLI::App& app, uint32_t& tokens, const std::string& help);  // -c 4096, 4K, 1M
void add_model_flags(CLI::App& app, Options& options);
void add_sampler_flags(CLI::App& app, PromptOptions& options);
void add_not_yet_flags(CLI::App& app);

// The arguments in CLI11's order, with llama.cpp's long flags behind one dash (-ngl, -ctk …) given
// a second one.
std::vector<std::string> normalise_arguments(int argc, char** argv);

// The strategy after file, environment and --set, -ctk and -ctv; the tool's default is dense
// attention over f16 blocks in main memory.
StrategyConfig resolve_strategy(const Options& options);
// Path of a strategy given as a file or as the name of a shipped preset.
std::string find_strategy(const std::string& name);
PluginSearch plugin_search(const Options& options);
Compute resolve_compute(const Options& options);
// Whether a token's result is promised not to depend on what shares its step: --deterministic, or
// f32 dense layers, which never do.
bool is_deterministic(const Options& options);
void add_deterministic(CLI::App& app, Options& options);  // --deterministic
std::string read_file(const std::string& path, const std::string& what);

}  // namespace kvasir::tool
