// Plugin extension test.probe/1: lets a test read what a fake has seen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::test {

inline constexpr const char* kProbeExtension = "test.probe/1";

struct Probe {
  double (*read)(void* self, uint32_t item) noexcept;  // the top of each fake numbers its items
};

}  // namespace kvasir::test
