// Trained models that are not part of the project; absent, a test says so and skips.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvasir::test {

// In $KVASIR_REAL_MODELS, by default kvasir/real-models in the user's cache folder.
inline std::filesystem::path trained_model(std::string_view file) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  std::filesystem::path folder = variable("KVASIR_REAL_MODELS");
  if (folder.empty()) {
    const std::filesystem::path cache = variable("XDG_CACHE_HOME");
    folder = (cache.empty() ? variable("HOME") / ".cache" : cache) / "kvasir/real-models";
  }
  return folder / file;
}

// False, with a visible line, when there is no such file.
inline bool has_model(const std::filesystem::path& path) {
  if (std::filesystem::exists(path)) return true;
  MESSAGE("SKIPPED: no " << path.filename().string()
                         << " (set KVASIR_REAL_MODELS to the folder that has it)");
  return false;
}

}  // namespace kvasir::test
