// Flags; see options.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/options.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/ktransformers_keys.h"

namespace kvasir::tool {
namespace fs = std::filesystem;
namespace {

fs::path executable_dir() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path();
}

struct NotYet {
  const char* flag;
  bool takes_value;
  const char* why;
};
constexpr NotYet kNotYet[] = {
    {"--ngl,--n-gpu-layers,--gpu-layers", true, "layers run on the CPU"},
    {"--fa,--flash-attn", true, "attention is chosen in the strategy ([attention])"},
    {"--numa", true, "workers are bound per NUMA node already"},
    {"--tb,--threads-batch", true, "prefill uses the threads of -t"},
    {"-b,--batch-size", true, "use --set cache.chunk_size=N"},
    {"--ub,--ubatch-size", true, "use --set cache.chunk_size=N"},
    {"--np,--parallel", true, "one sequence is run at a time"},
    {"--nkvo,--no-kv-offload", false, "the cache is in main memory already"},
    {"--no-mmap", false, "weights are converted at load"},
    {"--mlock", false, "weights are not locked"},
    {"--sm,--split-mode", true, "there is no GPU backend yet"},
    {"--ts,--tensor-split", true, "there is no GPU backend yet"},
    {"--mg,--main-gpu", true, "there is no GPU backend yet"},
    {"--grammar", true, "answers are not constrained"},
    {"--lora", true, "adapters are not applied"},
    {"--rope-scaling", true, "the model file's own scaling is used"},
    {"--rope-freq-base", true, "the model file's own base is used"},
    {"--rope-freq-scale", true, "the model file's own scaling is used"},
    {"--jinja", false, "known chat templates are recognised, see --chat-template"},
    {"--override-kv", true, "the model file's own values are used"},
    {"--keep", true, "what stays is the strategy's: sink_tokens and window_tokens"},
    {"--presence-penalty", true, "see --repeat-penalty"},
    {"--frequency-penalty", true, "see --repeat-penalty"},
    {"--typical,--typical-p", true, "see --top-k, --top-p and --min-p"},
    {"--mirostat", true, "see --top-k, --top-p and --min-p"},
    {"--samplers", true, "the order is fixed: penalty, top-k, top-p, min-p, temperature"},
    {"--md,--model-draft", true, "nothing is drafted"},
    {"--dev,--device", true, "there is no GPU backend yet"},
    {"--cnv,--conversation", false, "kvasir chat converses"},
    {"--no-cnv,--no-conversation", false, "kvasir run does not converse"},
    {"--st,--single-turn", false, "kvasir run answers once"},
    {"--no-warmup", false, "nothing is warmed up"},
    {"--no-display-prompt", false, "the prompt is not printed"},
    {"--color", false, "the answer is not coloured"},
    {"-e,--escape", false, "a prompt is taken as it is"},
};

// Types of llama.cpp that no storage of ours keeps yet.
bool is_future_cache_type(const std::string& type) {
  static constexpr std::array kTypes = {"q5_1", "q5_0", "q4_1", "iq4_nl"};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

}  // namespace

void add_strategy_flags(CLI::App& app, Options& o) {
  app.add_option("-s,--strategy", o.strategy, "Strategy file (TOML), or the name of a preset")
      ->envname("KVASIR_ARG_STRATEGY");
  app.add_option("--set", o.set, "Override a key: --set cache.window_tokens=64")
      ->allow_extra_args(false);
  app.add_option("--plugin-dir", o.plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  app.add_option("--ctk,--cache-type-k", o.cache_type_k,
                 "Type of stored K: f32, f16, bf16, q8_0, q4_0 (KVASIR_SET_STORAGE_TYPE_K in the "
                 "environment)");
  app.add_option("--ctv,--cache-type-v", o.cache_type_v, "Type of stored V, likewise");
  app.add_option("--log-level", o.log_level, "debug, info, warn, error")
      ->envname("KVASIR_LOG_LEVEL");
  app.add_flag("--json", o.json, "One JSON document on stdout, nothing else there");
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
  app.add_option("--compute", o.compute,
                 "Dense layers in f32 or bf16 (default: bf16 when the CPU has it). In bf16 the "
                 "chunk size may change greedy text, see --deterministic")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->envname("KVASIR_ARG_COMPUTE");
  add_deterministic(app, o);
  app.add_option("--seed", o.seed, "Seed of sampling and of plugins that draw")
      ->envname("KVASIR_ARG_SEED");
  app.add_flag("--check-numerics", o.check_numerics, "Fail when attention yields NaN or infinity");
  add_not_yet_flags(app);
}

void add_deterministic(CLI::App& app, Options& o) {
  app.add_flag("--deterministic", o.deterministic,
               "bf16: the same text whatever the chunk size and company (may be slower)")
      ->envname("KVASIR_ARG_DETERMINISTIC");
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
  app.add_flag("--ignore-eos", o.ignore_eos, "Generate on after an end-of-text token");
}

void add_not_yet_flags(CLI::App& app) {
  for (const NotYet& flag : kNotYet) {
    const std::string name = flag.flag, why = flag.why;
    const auto say = [name, why] {
      std::fprintf(
          stderr, "kvasir: %s: not yet: %s\n",
          name.substr(name.rfind(',') == std::string::npos ? 0 : name.rfind(',') + 1).c_str(),
          why.c_str());
    };
    // Hidden from --help: they do nothing.
    if (flag.takes_value) {
      app.add_option_function<std::string>(
             name, [say](const std::string&) { say(); }, "")
          ->group("");
    } else {
      app.add_flag_function(
             name, [say](int64_t) { say(); }, "")
          ->group("");
    }
  }
}

std::string find_strategy(const std::string& name) {
  if (name.empty() || fs::exists(name)) return name;
  std::vector<std::string> presets;
  std::string places;
  if (name.find('/') == std::string::npos) {
    for (const char* dir : {"../share/kvasir/strategies", "../../../configs/strategies"}) {
      const fs::path folder = fs::weakly_canonical(executable_dir() / dir);
      if (!fs::is_directory(folder)) continue;
      places += (places.empty() ? " here or in " : " or in ") + folder.string();
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() != ".toml") continue;
        if (entry.path().stem() == name || entry.path().filename() == name)
          return entry.path().string();
        presets.push_back(entry.path().stem().string());
      }
    }
  }
  const std::string near = nearest_name(name, presets);
  throw input_error("-s " + name + ": no such strategy file" + places +
                    (near.empty() ? "" : "; did you mean the preset \"" + near + "\"?"));
}

namespace {

StrategyConfig default_strategy() {
  StrategyConfig config;
  config.name = "dense";
  const auto section = [](Kind kind, const char* plugin) {
    PluginSection made;
    made.kind = kind;
    made.plugin.value = plugin;
    return made;
  };
  config.selectors = {section(Kind::kSelector, "kvasir.dense")};
  config.storage = section(Kind::kStorage, "kvasir.dram");
  config.attention = section(Kind::kAttention, "kvasir.cpu");
  config.representative_types = representative_types();
  return config;
}

}  // namespace

std::vector<std::string> normalise_arguments(int argc, char** argv) {
  static constexpr const char* kLong[] = {"-ngl", "-fa",  "-tb",  "-ub",     "-np",  "-nkvo",
                                          "-sm",  "-ts",  "-mg",  "-ctk",    "-ctv", "-sys",
                                          "-md",  "-dev", "-cnv", "-no-cnv", "-st"};
  std::vector<std::string> out;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 wants them last to first
    const std::string argument = argv[i], flag = argument.substr(0, argument.find('='));
    const bool known = std::find(std::begin(kLong), std::end(kLong), flag) != std::end(kLong);
    // Once without a value: what follows is another flag then.
    const bool bare = flag == "-fa" && argument == flag && (i + 1 == argc || argv[i + 1][0] == '-');
    if (bare) out.push_back("on");
    out.push_back(known ? "-" + argument : argument);
  }
  return out;
}

StrategyConfig resolve_strategy(const Options& o) {
  std::vector<Override> overrides;
  const auto add = [&](const std::string& key, const std::string& value, const std::string& flag) {
    Origin origin;
    origin.source = Origin::Source::kCommandLine;
    origin.name = flag;
    overrides.push_back({key, value, origin});
  };
  const auto add_type = [&](const std::string& key, const std::string& type, const char* flag) {
    if (type.empty()) return;
    if (!is_future_cache_type(type)) return add(key, type, flag + (" " + type));
    std::fprintf(stderr, "kvasir: %s %s: not yet: the type stays what the strategy says\n", flag,
                 type.c_str());
  };
  add_type("storage.type_k", o.cache_type_k, "-ctk");
  add_type("storage.type_v", o.cache_type_v, "-ctv");
  for (const std::string& set : o.set) {  // the longer way to say it wins
    const size_t at = set.find('=');
    if (at == std::string::npos || at == 0)
      throw input_error("--set " + set + ": expected key=value, as in cache.window_tokens=64");
    add(set.substr(0, at), set.substr(at + 1), "--set " + set);
  }
  const std::string path = find_strategy(o.strategy);
  StrategyConfig strategy = path.empty()
                                ? parse_strategy("", "dense", overrides, default_strategy())
                                : load_strategy(path, overrides, default_strategy());
  apply_preselect_keys(strategy);
  return strategy;
}

PluginSearch plugin_search(const Options& o) {
  PluginSearch search;
  if (!o.plugin_dirs.empty()) search.levels.push_back({"--plugin-dir", o.plugin_dirs});
  if (const char* env = std::getenv("KVASIR_PLUGIN_PATH")) {
    std::vector<std::string> dirs;
    std::stringstream stream(env);
    for (std::string dir; std::getline(stream, dir, ':');)
      if (!dir.empty()) dirs.push_back(dir);
    search.levels.push_back({"KVASIR_PLUGIN_PATH", dirs});
  }
  std::vector<std::string> installed;
  for (const char* dir : {"../plugins", "../" KVASIR_LIBDIR "/kvasir/plugins"}) {
    const fs::path path = fs::weakly_canonical(executable_dir() / dir);
    if (fs::is_directory(path)) installed.push_back(path.string());
  }
  search.levels.push_back({"install", installed});
  return search;
}

Compute resolve_compute(const Options& o) {
  if (o.compute == "f32") return Compute::kF32;
  if (compute_supported(Compute::kBF16)) return Compute::kBF16;
  if (o.compute == "bf16")
    throw Error(ErrorKind::kResource,
                "--compute bf16: this CPU has no bf16 matrix products; use --compute f32");
  return Compute::kF32;
}

bool is_deterministic(const Options& o) {
  return o.deterministic || resolve_compute(o) == Compute::kF32;
}

std::string read_file(const std::string& path, const std::string& what) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw input_error(what + " " + path + ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw input_error(what + " " + path + ": cannot be opened; check the path");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace kvasir::tool
