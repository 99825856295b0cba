// Shorthands of the configuration tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/config/strategy.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

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

}  // namespace kvasir::test
