// The needle probe in an engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "core/runtime/engine.h"
#include "tests/core/task/plugins/needle_probe.h"

namespace kvasir::test {

// Nothing is forced but the current token.
inline const std::string kProbeStrategy =
    "[cache]\nblock_size = 16\nsink_tokens = 0\nwindow_tokens = 0\n"
    "[selector]\nplugin = 'org.test.needle_probe'\n"
    "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f32'\ntype_v = 'f32'\n"
    "[attention]\nplugin = 'kvasir.cpu'\n";

inline NeedleProbe& needle_probe(Engine& engine) {
  const void* found = engine.pipeline().selectors.at(0)->extension(kNeedleProbe);
  REQUIRE(found != nullptr);
  return *static_cast<NeedleProbe*>(const_cast<void*>(found));  // NOLINT: given out to be written
}

}  // namespace kvasir::test
