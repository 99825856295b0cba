// What a test may expect of the machine it runs on; whoever runs it there says so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace kvasir::test {

// The processor is slowed down a lot (emulated, or under a sanitizer that watches every access): a
// property shown over many cases is shown over a few of them, never over none.
inline bool few_cases() { return std::getenv("KVASIR_TEST_FEW_CASES") != nullptr; }

// How often something is killed at a random time: KVASIR_TEST_KILLS=N, for who has the time, else
// `usual`, or 3 of few cases.
inline int n_kills(int usual) {
  if (const char* wanted = std::getenv("KVASIR_TEST_KILLS")) return std::atoi(wanted);
  return few_cases() ? 3 : usual;
}

// The processor is not the one that /proc/cpuinfo describes.
inline bool emulated() { return std::getenv("KVASIR_TEST_EMULATED") != nullptr; }

}  // namespace kvasir::test
