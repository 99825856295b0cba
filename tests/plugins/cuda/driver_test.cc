// cuda.so on a machine without an NVIDIA driver: it loads, and says in one sentence what is
// missing.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/support/plugin_instance.h"
#include "tests/support/skip.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
}

TEST_SUITE("plugins/cuda/driver") {
  TEST_CASE("without a driver a run ends before it begins, with the remedy") {
    const std::string file = KVASIR_BINARY_DIR "/plugins/cuda.so";
    if (!std::filesystem::exists(file)) {
      MESSAGE("SKIPPED: " << file << " is not built; the preset cuda builds it, with nvcc");
      return skip_case();
    }
    FakeHost host(1);
    PluginInstance<kvasir_attention> backend(host, file);
    REQUIRE(backend.status() == KVASIR_OK);
    const kvasir_geometry geometry = small_geometry();
    const kvasir_status status = backend->base.validate(backend.self(), &geometry, backend.err());
    if (status == KVASIR_OK) {
      MESSAGE("SKIPPED: this machine has a driver and a device");
      return skip_case();
    }
    CHECK(status == KVASIR_ERR_UNSUPPORTED);
    CHECK(backend->base.bind(backend.self(), &geometry, backend.err()) == KVASIR_ERR_UNSUPPORTED);
    const std::string text = backend.text();
    CAPTURE(text);
    CHECK(text.find("NVIDIA driver") != std::string::npos);
    CHECK(text.find("plugin = \"cpu\"") != std::string::npos);
  }
}
