// See strategy.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/strategy.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "tools/kvasir/session/blocked_plugins.h"
#include "tools/kvasir/session/first_contact.h"
#include "tools/kvasir/session/ktransformers_keys.h"

namespace kvasir::tool {
namespace fs = std::filesystem;
namespace {

fs::path executable_dir() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path();
}

// Types of llama.cpp that no storage of ours can hold yet.
bool is_future_cache_type(const std::string& type) {
  static constexpr std::array kTypes = {"q5_1", "q5_0", "q4_1", "iq4_nl"};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

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
  if (o.check_plugins) add("cache.on_fault", "fail", "--check-plugins");
  for (const std::string& set : o.set) {  // after -ctk and -ctv, so --set wins
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
  search.why_blocked = why_blocked;
  search.first_contact = first_contact;
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

std::string device_library() {
  if (const char* env = std::getenv("KVASIR_DEVICE_LIBRARY")) return env;
  const fs::path here = executable_dir();
  const fs::path built = fs::weakly_canonical(here / "../device/cuda_layers.so");
  if (fs::exists(built)) return built.string();
  return fs::weakly_canonical(here / "../" KVASIR_LIBDIR "/kvasir/device/cuda_layers.so").string();
}

Compute wanted_compute(const Options& o) {
  if (o.compute == "f32") return Compute::kF32;
  if (o.compute != "bf16") return Compute::kInt8;
  if (compute_supported(Compute::kBF16)) return Compute::kBF16;
  throw Error(ErrorKind::kResource,
              "--compute bf16: this CPU has no bf16 matrix products; use --compute f32");
}

}  // namespace kvasir::tool
