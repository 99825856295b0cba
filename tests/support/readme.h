// What READMEs of plugins claim, for tests that measure it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <string>

namespace kvasir::test {

// README of plugins/<folder> with single blanks, so that a claim may be broken over lines.
inline std::string readme(const std::string& folder) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/plugins/" + folder + "/README.md");
  REQUIRE_MESSAGE(file, folder);
  std::string out, word;
  while (file >> word) out += word + " ";
  return out;
}
inline void check_claim(const std::string& folder, const std::string& claim) {
  CHECK_MESSAGE(readme(folder).find(claim) != std::string::npos, folder, ": ", claim);
}

}  // namespace kvasir::test
