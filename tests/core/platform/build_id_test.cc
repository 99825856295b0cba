// What the linker says of a loaded object, against a second look at the running file.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/build_id.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace {
using namespace kvasir;

std::string bytes_of(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/platform/build_id");

TEST_CASE("a build ID stands in the file whose code it names") {
  const std::string own = build_id_of(reinterpret_cast<const void*>(&bytes_of));
  REQUIRE(own.size() >= 16);  // Debian's compilers ask for one
  std::ifstream self("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(self), {}};
  CHECK(file.find(bytes_of(own)) != std::string::npos);
  const std::string library = build_id_of(reinterpret_cast<const void*>(&std::fprintf));
  CHECK(library != own);
}

TEST_CASE("what is no code has none") {
  const int local = 0;
  CHECK(build_id_of(&local) == "");
  CHECK(build_id_of(nullptr) == "");
}
