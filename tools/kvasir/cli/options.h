// What the user typed: flags shared by several subcommands, spelled as llama.cpp's users know them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/platform/topology.h"
#include "core/serving/sampler.h"
#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

struct Options {
  std::string model;
  std::string strategy;          // file, or the name of a shipped preset
  std::vector<std::string> set;  // key=value
  std::vector<std::string> plugin_dirs;
  bool check_plugins = false;
  uint32_t ctx_size = 0;  // 0: what the prompt needs
  uint32_t threads = 0;   // 0: one per physical core
  NodeUse numa = NodeUse::kAll;
  std::string compute = "auto";  // auto, int8, bf16, f32
  uint64_t seed = 0;
  std::string cache_type_k, cache_type_v;
  std::string log_level = "warn";
  bool json = false;
  bool deterministic = false;
  uint32_t gpu_layers = 0;  // the last so many; UINT32_MAX: all, and the head
};

struct PromptOptions {
  std::optional<std::string> prompt;  // -p "" is a prompt: the BOS token alone
  std::string file;
  uint32_t n_predict = 128;
  SamplerOptions sampler;
  std::string chat_template;
  std::string cache_file;           // --prompt-cache
  bool cache_readonly = false;      // --prompt-cache-ro
  std::vector<std::string> chunks;  // files that stand before the prompt and are reused
  std::string blend;                // how; empty: as the strategy's [blend] says
  bool ignore_eos = false;
};

// -s --set --plugin-dir --check-plugins -ctk -ctv --log-level --json.
void add_strategy_flags(CLI::App& app, Options& options);
void add_ctx_size(CLI::App& app, uint32_t& tokens, const std::string& help);  // -c 4096, 4K, 1M
void add_numa(CLI::App& app, NodeUse& use);                                   // --numa
// -m -c -t --numa --compute --deterministic -ngl --seed, and llama_cpp_flags.h.
void add_model_flags(CLI::App& app, Options& options);
void add_sampler_flags(CLI::App& app, PromptOptions& options);
void add_deterministic(CLI::App& app, Options& options);  // --deterministic
void add_gpu_layers(CLI::App& app, uint32_t& n);          // -ngl
void add_json(CLI::App& app, bool& json);                 // --json
void add_check_plugins(CLI::App& app, bool& check);       // --check-plugins
void add_most_attended(CLI::App& app, double& percent);   // --most-attended
void add_no_mask(CLI::App& app, bool& no_mask);           // --no-mask

// For all flags of a command and those below it: a number without sign refuses one (it would wrap),
// a number with a fraction refuses NaN and infinity.
void refuse_odd_numbers(CLI::App& app);

}  // namespace kvasir::tool
