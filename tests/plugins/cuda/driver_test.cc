// Plugins for NVIDIA GPUs on a machine without a driver: each loads, and says in one sentence what
// is missing.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/support/plugin_instance.h"
#include "tests/support/skip.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;

template <class Table>
void check_refuses(const std::string& name) {
  CAPTURE(name);
  const std::string file = KVASIR_BINARY_DIR "/plugins/" + name + ".so";
  if (!std::filesystem::exists(file)) {
    MESSAGE("SKIPPED: " << file << " is not built; the preset cuda builds it, with nvcc");
    return skip_case();
  }
  CompletingHost host;
  PluginInstance<Table> plugin(host, file);
  REQUIRE(plugin.status() == KVASIR_OK);
  const kvasir_geometry geometry = small_geometry();
  const kvasir_status status = plugin->base.validate(plugin.self(), &geometry, plugin.err());
  if (status == KVASIR_OK) {
    MESSAGE("SKIPPED: this machine has a driver and a device");
    return skip_case();
  }
  CHECK(status == KVASIR_ERR_UNSUPPORTED);
  CHECK(plugin->base.bind(plugin.self(), &geometry, plugin.err()) == KVASIR_ERR_UNSUPPORTED);
  const std::string text = plugin.text();
  CAPTURE(text);
  CHECK(text.find("NVIDIA driver") != std::string::npos);
  CHECK(text.find("plugin = \"cpu\"") != std::string::npos);
}

}  // namespace

TEST_SUITE("plugins/cuda/driver") {
  TEST_CASE("without a driver a run ends before it begins, with the remedy") {
    check_refuses<kvasir_attention>("cuda");
    check_refuses<kvasir_storage>("gpu");
    check_refuses<kvasir_storage>("gpu_tiered");
    check_refuses<kvasir_representative>("cuda_minmax");
    check_refuses<kvasir_representative>("cuda_mean");
    check_refuses<kvasir_selector>("cuda_block_topk");
  }
}
