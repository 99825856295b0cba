// Test material that lives beside the repository; absent, a test says so and skips.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/skip.h"

namespace kvasir::test {

// <repository>/../shared/data, or $KVASIR_TEST_DATA; empty when there is none.
inline std::filesystem::path data_dir() {
  if (const char* env = std::getenv("KVASIR_TEST_DATA")) return env;
  const auto dir = std::filesystem::path(KVASIR_SOURCE_DIR).parent_path() / "shared" / "data";
  return std::filesystem::exists(dir) ? dir : std::filesystem::path();
}

}  // namespace kvasir::test

// A test case that needs it. ctest has these in an entry of their own, <folder>/data, which it
// counts as skipped when the data is absent; the first line of such a case is
// KVASIR_REQUIRE_DATA().
#define KVASIR_DATA_TEST_CASE(name) TEST_CASE("[data] " name)

// Leaves the test case with a visible line when the shared data is absent.
#define KVASIR_REQUIRE_DATA(variable)                                             \
  const auto variable = kvasir::test::data_dir();                                 \
  if (variable.empty()) {                                                         \
    kvasir::test::skip_case();                                                    \
    MESSAGE("SKIPPED: test data not found (set KVASIR_TEST_DATA to its folder)"); \
    return;                                                                       \
  }
