// Shorthands of the configuration tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/config/strategy.h"
#include "core/error.h"

namespace kvasir::test {

// What a tool passes as its default strategy.
inline StrategyConfig defaults() {
  StrategyConfig config;
  config.selectors.resize(1);
  config.selectors[0].plugin.value = "default_selector";
  config.storage.kind = Kind::kStorage;
  config.storage.plugin.value = "default_storage";
  config.storage.options.push_back({"tier", int64_t{1}, {}});
  config.attention.kind = Kind::kAttention;
  config.attention.plugin.value = "default_attention";
  return config;
}

inline StrategyConfig parse(const std::string& toml, const std::vector<Override>& overrides = {}) {
  return parse_strategy(toml, "test.toml", overrides, defaults());
}

// The text of the Error(kInput) that fn throws, or empty.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kInput ? e.what() : std::string();
  }
  return {};
}

// A directory of its own, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kvasir-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error(ErrorKind::kResource, "no temporary directory");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvasir::test
