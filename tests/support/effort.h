// What a test may expect of the machine it runs on; whoever runs it there says so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace kvasir::test {

// The processor is slowed down a lot (emulated, or under a sanitizer that watches every access): a
// property shown over many cases is shown over a few of them, never over none.
inline bool few_cases() { return std::getenv("KVASIR_TEST_FEW_CASES") != nullptr; }

// The processor is not the one that /proc/cpuinfo describes.
inline bool emulated() { return std::getenv("KVASIR_TEST_EMULATED") != nullptr; }

}  // namespace kvasir::test
