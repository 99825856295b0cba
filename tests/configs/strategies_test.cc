// Every preset is understood: its keys by the core, its options by the plugins it names.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/platform/topology.h"
#include "core/plugin/pipeline.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir;
namespace fs = std::filesystem;

std::vector<fs::path> presets() {
  std::vector<fs::path> out;
  for (const char* folder : {"strategies", "offload"})
    for (const auto& file :
         fs::directory_iterator(std::string(KVASIR_SOURCE_DIR "/configs/") + folder))
      if (file.path().extension() == ".toml") out.push_back(file.path());
  return out;
}

kvasir_geometry geometry_of(const StrategyConfig& strategy) {
  kvasir_geometry geometry = test::small_geometry();
  geometry.head_dim = geometry.v_dim = 128;
  geometry.block_size = strategy.cache.block_size.value;
  geometry.max_context = 131072;
  geometry.sink_tokens = strategy.cache.sink_tokens.value;
  geometry.window_tokens = strategy.cache.window_tokens.value;
  return geometry;
}

TEST_SUITE("configs") {
  TEST_CASE("every preset begins with what it is and passes all checks of its plugins") {
    ThreadPool pool(Topology::detect(), 1, false);
    HostServices services(pool, [](uint32_t, const std::string&, const std::string&) {});
    PluginSearch search;
    search.levels = {{"build", {KVASIR_BINARY_DIR "/plugins"}}};
    PluginRegistry registry(search, services);
    REQUIRE(presets().size() >= 12);
    for (const fs::path& path : presets()) {
      CAPTURE(path.filename().string());
      std::ifstream file(path);
      CHECK(file.get() == '#');
      const StrategyConfig strategy = load_strategy(path.string(), {}, {});
      const kvasir_geometry geometry = geometry_of(strategy);
      const auto check = [&]<class Wrapper>(const PluginSection& section, const Wrapper*) {
        const OpenPlugin plugin = registry.open(section.kind, section.plugin.value);
        const Wrapper instance(plugin, services, ResolvedOptions(*plugin.desc, section));
        instance.validate(geometry);
      };
      for (const auto& section : strategy.selectors) {
        check(section, static_cast<const Selector*>(nullptr));
      }
      if (strategy.representative) {
        check(*strategy.representative, static_cast<const Representative*>(nullptr));
      }
      check(strategy.storage, static_cast<const Storage*>(nullptr));
    }
  }
}

}  // namespace
